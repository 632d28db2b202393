from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from engine.models.qwen3_tts import talker as lookup_predictor
from engine.models.qwen3_tts.talker import CodePredictor, LookupCodePredictor, Talker

ROWS = 5


def with_layers(talker: Talker, num_layers: int) -> CodePredictor:
    """A fused predictor with random weights, of the talker's shape but for its depth."""
    config = talker.config.code_predictor
    stack = replace(config.transformer, num_hidden_layers=num_layers)
    predictor = CodePredictor(replace(config, transformer=stack), talker.codec_head.in_features)
    torch.manual_seed(3)
    with torch.no_grad():
        for weight in predictor.parameters():
            weight.normal_(std=0.3)
    predictor.eval().requires_grad_(False).fuse()
    return predictor


def generate(predictor: CodePredictor, hidden: Tensor, code0_row: Tensor) -> tuple[Tensor, Tensor]:
    seen: list[Tensor] = []

    def greedy(codebook: int, logits: Tensor) -> Tensor:
        seen.append(logits)
        return logits.argmax(-1)

    return predictor.generate(hidden, code0_row, greedy), torch.stack(seen)


def test_looked_up_frames_are_those_of_the_layer(plain_talker: Talker) -> None:
    predictor = with_layers(plain_talker, 1)
    fast = deepcopy(predictor)
    fast.build_lookup()
    assert fast.looked_up is not None
    hidden, row0 = torch.randn(2, ROWS, plain_talker.codec_head.in_features)
    codes, logits = generate(predictor, hidden, row0)
    fast_codes, fast_logits = generate(fast, hidden, row0)
    assert torch.equal(fast_codes, codes)
    torch.testing.assert_close(fast_logits, logits, atol=1e-4, rtol=1e-4)
    assert len(codes.unique(dim=0)) == ROWS, "rows that differ"


def test_a_deeper_stack_is_left_alone(plain_talker: Talker) -> None:
    predictor = with_layers(plain_talker, 2)
    predictor.build_lookup()
    assert predictor.looked_up is None


def test_tables_that_would_be_large_are_not_made(plain_talker: Talker, monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = with_layers(plain_talker, 1)
    assert LookupCodePredictor.fits(predictor)
    monkeypatch.setattr(lookup_predictor, "MAX_TABLE_BYTES", 1000)
    assert not LookupCodePredictor.fits(predictor)
