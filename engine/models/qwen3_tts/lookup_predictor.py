"""The code predictor of one layer, mostly looked up.

What a layer's queries, keys and values are depends on its input alone. In a stack of one layer that input is the
embedding of a code, at a place that the codebook gives; so all of them are computed once, when the weights are loaded.
``CodePredictor.generate`` is the slow reference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.layers.transformer import attention

if TYPE_CHECKING:
    from engine.models.qwen3_tts.code_predictor import CodePredictor, Draw

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
        """Whether the stack has one layer and the tables are small."""
        stack, config = predictor.config.transformer, predictor.config
        num_heads = stack.num_attention_heads + 2 * stack.num_key_value_heads
        table_bytes = 4 * config.num_code_groups * config.vocab_size * num_heads * stack.head_dim
        return stack.num_hidden_layers == 1 and table_bytes <= MAX_TABLE_BYTES

    def project(self, x: Tensor, start: int) -> Tensor:
        """Inputs [N, T, H] at places ``start``, ... -> queries, keys and values side by side [N, T, heads, D]."""
        end = start + x.shape[1]
        normed = self.layer.input_layernorm(x)
        return torch.cat(self.layer.self_attn.project(normed, self.cos[:, start:end], self.sin[:, start:end]), dim=-2)

    def generate(self, hidden: Tensor, code0_row: Tensor, draw: Draw) -> Tensor:
        """As ``CodePredictor.generate``."""
        x = self.into_stack(torch.stack((hidden, code0_row), dim=1))
        heads = self.project(x, 0)
        cache = heads.new_empty(heads.shape[0], self.num_codes, 2 * self.num_keys, heads.shape[-1])
        cache[:, :FIRST_KNOWN] = heads[:, :, self.num_queries :]
        x, query = x[:, 1], heads[:, 1, : self.num_queries]
        codes: list[Tensor] = []
        for codebook in range(1, self.num_codes):
            out = self.finish(x, query, cache[:, : codebook + 1])
            codes.append(draw(codebook, self.heads[codebook - 1](out)))
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
