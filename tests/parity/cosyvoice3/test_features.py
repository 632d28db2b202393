"""Recordings look to the three networks as the official front end shows them (``make_vectors`` made the vectors)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.models.cosyvoice3.voice import flow_mel, resample, speaker_fbank, whisper_mel
from tests.parity.cosyvoice3.cases import SOUND_SECONDS
from tests.parity.cosyvoice3.golden import Golden


@pytest.fixture(scope="module")
def vectors(golden: Golden) -> dict[str, Tensor]:
    return golden.part("sounds")


def same(found: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize("name", SOUND_SECONDS)
def test_features(vectors: dict[str, Tensor], name: str) -> None:
    narrow, wide = (vectors[f"{name}/{rate}"].float() / 32768 for rate in (16000, 24000))
    same(speaker_fbank(narrow), vectors[f"{name}/fbank"], 1e-3)
    same(whisper_mel(narrow), vectors[f"{name}/whisper"], 1e-4)
    same(flow_mel(wide, 80), vectors[f"{name}/mel"], 1e-4)
    same(resample(wide, 24000, 16000), vectors[f"{name}/resampled"], 1e-6)
