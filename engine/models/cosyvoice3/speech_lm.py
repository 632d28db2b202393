"""The talker: a Qwen2 stack between two tables, text and speech, and a head over speech ids (spec 2.1)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine.layers.transformer import AttentionContext, Transformer
from engine.models.cosyvoice3.config import CosyTalkerConfig


class Backbone(Transformer):
    """The part under ``llm.model.model``."""

    def __init__(self, config: CosyTalkerConfig) -> None:
        super().__init__(config.transformer)
        self.embed_tokens = nn.Embedding(config.text_vocab_size, config.transformer.hidden_size)


class SpeechLM(nn.Module):
    """Everything that is used of ``llm.pt``, by the released names.

    An input is one number: a text id as it is, a speech id behind all of them.
    """

    def __init__(self, config: CosyTalkerConfig) -> None:
        super().__init__()
        self.config = config
        size, num_speech = config.transformer.hidden_size, config.speech_ids.table_size
        self.llm = nn.Module()
        self.llm.model = nn.Module()
        self.llm.model.model = Backbone(config)
        self.speech_embedding = nn.Embedding(num_speech, size)
        self.llm_decoder = nn.Linear(size, num_speech, bias=False)
        self.register_buffer("table", None, persistent=False)

    @property
    def backbone(self) -> Backbone:
        return self.llm.model.model

    def fuse(self) -> None:
        """One table of text and speech in place of two, merged projections; nothing is held twice. The head in fp32."""
        self.llm_decoder.float()
        self.backbone.fuse()
        self.table = torch.cat((self.backbone.embed_tokens.weight, self.speech_embedding.weight)).detach()
        del self.backbone.embed_tokens, self.speech_embedding

    def embed(self, inputs: Tensor) -> Tensor:
        """inputs [...] -> [..., H]."""
        if self.table is not None:
            return self.table[inputs]
        is_speech = inputs >= self.config.text_vocab_size
        text = self.backbone.embed_tokens(inputs.masked_fill(is_speech, 0))
        speech = self.speech_embedding((inputs - self.config.text_vocab_size).clamp(min=0))
        return torch.where(is_speech[..., None], speech, text)

    def forward(self, inputs: Tensor, positions: Tensor, context: AttentionContext) -> Tensor:
        """inputs and positions [B, T] -> hidden states [B, T, H], normed: what the head takes."""
        return self.backbone(self.embed(inputs), positions, context)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [N, H] -> [N, speech ids] in fp32, which the head is in whatever the rest computes in."""
        return self.llm_decoder(hidden.float())
