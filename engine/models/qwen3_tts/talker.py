"""The talker and its code predictor by the released names, and the predictor by lookup."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.layers.transformer import AttentionContext, CausalContext, Transformer, attention
from engine.models.qwen3_tts.config import CodePredictorConfig, QwenTalkerConfig

# (codebook, logits [N, V]) -> ids [N].
CodeSampler = Callable[[int, Tensor], Tensor]


class FrameCache:
    """Keys and values of one frame's K positions, dense; all rows of a batch stand at the same position."""

    def __init__(self, config: CodePredictorConfig, num_rows: int, like: Tensor) -> None:
        stack = config.transformer
        shape = (stack.num_hidden_layers, 2, num_rows, config.num_code_groups, stack.num_key_value_heads)
        self.kv = like.new_empty(*shape, stack.head_dim)
        self.length = 0

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        end = self.length + q.shape[1]
        keys, values = self.kv[layer]
        keys[:, self.length : end] = k
        values[:, self.length : end] = v
        return attention(q, keys[:, :end], values[:, :end], is_causal=q.shape[1] > 1)


class CodePredictorModel(Transformer):
    """The part under ``code_predictor.model``: stack, and the tables E1..E(K-1), as wide as the talker."""

    def __init__(self, config: CodePredictorConfig, talker_size: int) -> None:
        super().__init__(config.transformer)
        self.codec_embedding = nn.ModuleList(
            nn.Embedding(config.vocab_size, talker_size) for _ in range(config.num_code_groups - 1)
        )


class CodePredictor(nn.Module):
    """K-1 serial samples a frame, each conditioned on the codes before it; the cache lives for one frame."""

    def __init__(self, config: CodePredictorConfig, talker_size: int) -> None:
        super().__init__()
        self.config = config
        size = config.transformer.hidden_size
        self.model = CodePredictorModel(config, talker_size)
        self.lm_head = nn.ModuleList(
            nn.Linear(size, config.vocab_size, bias=False) for _ in range(config.num_code_groups - 1)
        )
        self.small_to_mtp_projection = nn.Linear(talker_size, size) if config.projected else nn.Identity()
        self.input_tables: list[Tensor] | None = None
        self.looked_up: LookupCodePredictor | None = None

    def fuse(self) -> None:
        """Fold the input projection into the tables: the product is then left for the hidden state alone."""
        self.model.fuse()
        self.input_tables = [self.small_to_mtp_projection(table.weight) for table in self.model.codec_embedding]

    def build_lookup(self) -> None:
        """Compute ahead what depends on the codes alone; without effect on a stack of several layers."""
        if LookupCodePredictor.fits(self):
            self.looked_up = LookupCodePredictor(self)

    def input_row(self, codebook: int, codes: Tensor) -> Tensor:
        """Projected embedding of the codes [N] of ``codebook`` (1..K-1) -> [N, size]."""
        if self.input_tables is not None:
            return self.input_tables[codebook - 1][codes]
        return self.small_to_mtp_projection(self.model.codec_embedding[codebook - 1](codes))

    def generate(self, hidden: Tensor, code0_row: Tensor, sample_code: CodeSampler) -> Tensor:
        """hidden [N, H], code0_row = E0[c0] [N, H] -> codes 1..K-1 [N, K-1]."""
        if self.looked_up is not None:
            return self.looked_up.generate(hidden, code0_row, sample_code)
        cache = FrameCache(self.config, hidden.shape[0], hidden)
        positions = torch.arange(self.config.num_code_groups, device=hidden.device)[None]
        x = self.small_to_mtp_projection(torch.stack((hidden, code0_row), dim=1))
        codes = []
        for codebook in range(1, self.config.num_code_groups):
            end = cache.length + x.shape[1]
            out = self.model(x, positions[:, cache.length : end], cache)
            cache.length = end
            codes.append(sample_code(codebook, self.lm_head[codebook - 1](out[:, -1])))
            if codebook < self.config.num_code_groups - 1:
                x = self.input_row(codebook, codes[-1])[:, None]
        return torch.stack(codes, dim=1)

    def teacher_logits(self, hidden: Tensor, code0_row: Tensor, codes: Tensor) -> Tensor:
        """The same logits with every code known: hidden and code0_row [N, H], codes 1..K-1 [N, K-1] -> [N, K-1, V]."""
        rows = [table(codes[:, j]) for j, table in enumerate(self.model.codec_embedding) if j < codes.shape[1] - 1]
        x = self.small_to_mtp_projection(torch.stack((hidden, code0_row, *rows), dim=1))
        positions = torch.arange(x.shape[1], device=x.device)[None]
        out = self.model(x, positions, CausalContext())
        return torch.stack([head(out[:, j + 1]) for j, head in enumerate(self.lm_head)], dim=1)


MAX_TABLE_BYTES = 64 * 2**20
# Positions 0 and 1 are the talker's hidden state and code 0; position j + 1 is the code of codebook j.
FIRST_KNOWN = 2


class LookupCodePredictor:
    def __init__(self, predictor: CodePredictor) -> None:
        stack = predictor.model
        (self.layer,) = stack.layers
        self.norm, self.heads = stack.norm, predictor.lm_head
        self.into_stack = predictor.small_to_mtp_projection
        self.num_codes = predictor.config.num_code_groups
        self.num_queries, self.num_keys, _ = self.layer.self_attn.num_heads
        places = torch.arange(self.num_codes, device=stack.norm.weight.device)[None]
        self.cos, self.sin = stack.rope(places, stack.norm.weight.dtype)
        self.rows = (predictor.input_tables or [])[: self.num_codes - FIRST_KNOWN]
        self.known = [self.project(rows[:, None], FIRST_KNOWN + i)[:, 0] for i, rows in enumerate(self.rows)]

    @staticmethod
    def fits(predictor: CodePredictor) -> bool:
        """Return whether the stack has one layer and the tables are small."""
        stack, config = predictor.config.transformer, predictor.config
        num_heads = stack.num_attention_heads + 2 * stack.num_key_value_heads
        table_bytes = 4 * config.num_code_groups * config.vocab_size * num_heads * stack.head_dim
        return stack.num_hidden_layers == 1 and table_bytes <= MAX_TABLE_BYTES

    def project(self, x: Tensor, start: int) -> Tensor:
        """Inputs [N, T, H] at places ``start``, ... -> queries, keys and values side by side [N, T, heads, D]."""
        end = start + x.shape[1]
        normed = self.layer.input_layernorm(x)
        return torch.cat(self.layer.self_attn.project(normed, self.cos[:, start:end], self.sin[:, start:end]), dim=-2)

    def generate(self, hidden: Tensor, code0_row: Tensor, sample_code: CodeSampler) -> Tensor:
        """Generate like ``CodePredictor.generate``."""
        x = self.into_stack(torch.stack((hidden, code0_row), dim=1))
        heads = self.project(x, 0)
        cache = heads.new_empty(heads.shape[0], self.num_codes, 2 * self.num_keys, heads.shape[-1])
        cache[:, :FIRST_KNOWN] = heads[:, :, self.num_queries :]
        x, query = x[:, 1], heads[:, 1, : self.num_queries]
        codes: list[Tensor] = []
        for codebook in range(1, self.num_codes):
            out = self.finish(x, query, cache[:, : codebook + 1])
            codes.append(sample_code(codebook, self.heads[codebook - 1](out)))
            if codebook < self.num_codes - 1:
                x = self.rows[codebook - 1].index_select(0, codes[-1])
                heads = self.known[codebook - 1].index_select(0, codes[-1])
                query = heads[:, : self.num_queries]
                cache[:, codebook + 1] = heads[:, self.num_queries :]
        return torch.stack(codes, dim=1)

    def finish(self, x: Tensor, query: Tensor, cache: Tensor) -> Tensor:
        """x [N, H], query [N, Hq, D], cache [N, T, keys and values, D] -> the stack's output [N, H]."""
        keys, values = cache.split(self.num_keys, dim=-2)
        attended = attention(query[:, None], keys, values).flatten(1)
        x = x + self.layer.self_attn.o_proj(attended)
        return self.norm(x + self.layer.mlp(self.layer.post_attention_layernorm(x)))


# Rows of the text table made at once: all of them would need several times the table's memory.
FUSED_ROWS = 8192


class TextProjection(nn.Module):
    def __init__(self, size_in: int, size_out: int) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(size_in, size_in)
        self.linear_fc2 = nn.Linear(size_in, size_out)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_fc2(F.silu(self.linear_fc1(x)))


class TalkerModel(Transformer):
    """The part under ``talker.model``: stack, E0 and the text embedding."""

    def __init__(self, config: QwenTalkerConfig) -> None:
        super().__init__(config.transformer)
        self.codec_embedding = nn.Embedding(config.vocab_size, config.transformer.hidden_size)
        self.text_embedding = nn.Embedding(config.text_vocab_size, config.text_hidden_size)


class Talker(nn.Module):
    """Everything under ``talker.`` in the released file, by the released names."""

    def __init__(self, config: QwenTalkerConfig) -> None:
        super().__init__()
        self.config = config
        size = config.transformer.hidden_size
        self.model = TalkerModel(config)
        self.text_projection = TextProjection(config.text_hidden_size, size)
        self.codec_head = nn.Linear(size, config.vocab_size, bias=False)
        self.code_predictor = CodePredictor(config.code_predictor, size)
        self.register_buffer("text_table", None, persistent=False)
        self.register_buffer("frame_table", None, persistent=False)

    def fuse(self) -> None:
        """Precompute what does not depend on the request: one text lookup, one frame lookup, merged projections.

        What the lookups were made of is let go of, so that nothing is held twice.
        """
        self.model.fuse()
        self.code_predictor.fuse()
        rows = self.model.text_embedding.weight.split(FUSED_ROWS)
        self.text_table = torch.cat([self.text_projection(part) for part in rows])
        del self.model.text_embedding, self.text_projection
        self._fuse_frames()

    def _fuse_frames(self) -> None:
        embeddings = [self.model.codec_embedding, *self.code_predictor.model.codec_embedding]
        sizes = [embedding.num_embeddings for embedding in embeddings]
        self.frame_table = torch.cat([embedding.weight for embedding in embeddings]).detach()
        for embedding, part in zip(embeddings, self.frame_table.split(sizes), strict=True):
            embedding.weight = nn.Parameter(part, requires_grad=False)
        self.frame_offsets = torch.tensor([0, *sizes[:-1]], device=self.frame_table.device).cumsum(0)

    def embed_text(self, ids: Tensor) -> Tensor:
        """T(x): ids [...] -> [..., H]."""
        if self.text_table is not None:
            return self.text_table[ids]
        return self.text_projection(self.model.text_embedding(ids))

    def embed_codec(self, ids: Tensor) -> Tensor:
        """E0: ids [...] of the codec vocabulary -> [..., H]."""
        return self.model.codec_embedding(ids)

    def embed_frame(self, codes: Tensor) -> Tensor:
        """E0[c0] + E1[c1] + ...: codes [N, K] -> [N, H]."""
        if self.frame_table is not None:
            return F.embedding_bag(codes + self.frame_offsets, self.frame_table, mode="sum")
        tables = (self.model.codec_embedding, *self.code_predictor.model.codec_embedding)
        return torch.stack([table(codes[..., j]) for j, table in enumerate(tables)]).sum(0)

    def forward(self, x: Tensor, positions: Tensor, context: AttentionContext) -> Tensor:
        """x [B, T, H], positions [B, T] -> hidden states [B, T, H], normed: for the head and the predictor alike."""
        return self.model(x, positions, context)
