"""Codes 1..K-1 of a frame from the talker's hidden state and code 0 (specs/qwen3-tts.md 2.3, 4.3)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from engine.layers.transformer import CausalContext, Transformer, attention
from engine.models.qwen3_tts.config import CodePredictorConfig
from engine.models.qwen3_tts.lookup_predictor import LookupCodePredictor

# (codebook, logits [N, V]) -> ids [N].
Draw = Callable[[int, Tensor], Tensor]


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

    def generate(self, hidden: Tensor, code0_row: Tensor, draw: Draw) -> Tensor:
        """hidden [N, H], code0_row = E0[c0] [N, H] -> codes 1..K-1 [N, K-1]."""
        if self.looked_up is not None:
            return self.looked_up.generate(hidden, code0_row, draw)
        cache = FrameCache(self.config, hidden.shape[0], hidden)
        positions = torch.arange(self.config.num_code_groups, device=hidden.device)[None]
        x = self.small_to_mtp_projection(torch.stack((hidden, code0_row), dim=1))
        codes = []
        for codebook in range(1, self.config.num_code_groups):
            end = cache.length + x.shape[1]
            out = self.model(x, positions[:, cache.length : end], cache)
            cache.length = end
            codes.append(draw(codebook, self.lm_head[codebook - 1](out[:, -1])))
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
