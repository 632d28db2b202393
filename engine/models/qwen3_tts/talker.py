"""The talker: one position a frame, text row plus codec row in, hidden state out (specs/qwen3-tts.md 2, 4.1)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.layers.transformer import AttentionContext, Transformer
from engine.models.qwen3_tts.code_predictor import CodePredictor
from engine.models.qwen3_tts.config import QwenTalkerConfig

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
