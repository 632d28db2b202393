from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor

from engine.layers.cpu import pack_linears
from engine.models.qwen3_tts.talker import Talker

TOLERANCE = 1e-4
ROWS = 5


@pytest.fixture
def hidden(plain_talker: Talker) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(ROWS, plain_talker.codec_head.in_features)


@pytest.fixture
def code0(plain_talker: Talker) -> Tensor:
    return torch.randint(0, plain_talker.config.num_codes, (ROWS,), generator=torch.Generator().manual_seed(2))


@pytest.fixture(params=["plain", "fused", "fused and packed"])
def talker(request: pytest.FixtureRequest, plain_talker: Talker) -> Talker:
    talker = deepcopy(plain_talker)
    if request.param != "plain":
        talker.fuse()
    if "packed" in request.param:
        pack_linears(talker)
    return talker


def generate(talker: Talker, hidden: Tensor, code0: Tensor) -> tuple[Tensor, Tensor]:
    """Greedy codes [N, K-1], and the logits they were drawn from."""
    seen: list[Tensor] = []

    def greedy(codebook: int, logits: Tensor) -> Tensor:
        assert codebook == len(seen) + 1
        seen.append(logits)
        return logits.argmax(-1)

    codes = talker.code_predictor.generate(hidden, talker.embed_codec(code0), greedy)
    return codes, torch.stack(seen, dim=1)


def test_cached_generation_equals_one_pass_over_a_frame(
    talker: Talker, plain_talker: Talker, hidden: Tensor, code0: Tensor
) -> None:
    codes, logits = generate(talker, hidden, code0)
    whole = plain_talker.code_predictor.teacher_logits(hidden, plain_talker.embed_codec(code0), codes)
    torch.testing.assert_close(logits, whole, atol=TOLERANCE, rtol=1e-4)
    assert torch.equal(codes, whole.argmax(-1)), "no draw here is so close that rounding decides"


def test_a_frame_does_not_depend_on_its_neighbours(talker: Talker, hidden: Tensor, code0: Tensor) -> None:
    codes, logits = generate(talker, hidden, code0)
    for row in range(ROWS):
        alone, own = generate(talker, hidden[row : row + 1], code0[row : row + 1])
        torch.testing.assert_close(own[0], logits[row], atol=TOLERANCE, rtol=1e-4)
        assert torch.equal(alone[0], codes[row])


def test_every_earlier_code_matters(plain_talker: Talker, hidden: Tensor, code0: Tensor) -> None:
    codes, _ = generate(plain_talker, hidden, code0)
    predictor, row0 = plain_talker.code_predictor, plain_talker.embed_codec(code0)
    before = predictor.teacher_logits(hidden, row0, codes)
    for j in range(codes.shape[1] - 1):
        changed = codes.clone()
        changed[:, j] = (changed[:, j] + 1) % plain_talker.config.num_codes
        after = predictor.teacher_logits(hidden, row0, changed)
        assert torch.equal(after[:, : j + 1], before[:, : j + 1])
        assert (after[:, j + 1 :] - before[:, j + 1 :]).abs().amax(-1).min() > 1e-3
    other0 = predictor.teacher_logits(hidden, plain_talker.embed_codec((code0 + 1) % 64), codes)
    assert (other0 - before).abs().amax(-1).min() > 1e-3
