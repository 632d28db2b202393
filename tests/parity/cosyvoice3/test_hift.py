"""The vocoder makes the official PCM, both with phase in float64 (``make_vectors`` made the vectors)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.models.cosyvoice3.vocoder_stage import HiftBatch
from tests.fakes.cosyvoice3_reference import pcm_of_mel, pitch_of_mel
from tests.parity.cosyvoice3.cases import HIFT_CUTS, HIFT_FRAMES
from tests.parity.cosyvoice3.golden import Golden, close


@pytest.fixture(scope="module")
def vectors(golden: Golden) -> dict[str, Tensor]:
    return golden.part("hift")


def test_pitch(golden: Golden, vectors: dict[str, Tensor]) -> None:
    found = pitch_of_mel(golden.hift.f0_predictor, vectors["mel"].t()[None])[0]
    torch.testing.assert_close(found, vectors["f0"], atol=1e-4, rtol=0)
    assert (found == vectors["f0"]).float().mean() > 0.95, "weights in float32 would round some"
    assert 0.5 < (found > 10).float().mean() < 1, "voiced and unvoiced frames, both"


def test_excitation(golden: Golden, vectors: dict[str, Tensor]) -> None:
    source = golden.hift.m_source
    phase = torch.zeros(1, source.num_harmonics, dtype=torch.float64)
    found, _ = source(vectors["f0"][None], phase, torch.tensor([0]))
    torch.testing.assert_close(found.flatten(), vectors["source"], atol=2e-5, rtol=0)


def test_pcm_in_one_pass(golden: Golden, vectors: dict[str, Tensor]) -> None:
    close(pcm_of_mel(golden.hift, vectors["mel"].t()[None])[0], vectors["pcm"])


def test_pcm_in_pieces_has_the_official_lengths_and_samples(golden: Golden, vectors: dict[str, Tensor]) -> None:
    """The official vocoder keeps all of the mel and computes it again; ours goes on from where it was."""
    rows, begin = HiftBatch(golden.hift, 1), 0
    rows.open(0)
    counts, pieces = vectors["counts"].tolist(), list[Tensor]()
    for end, count in zip((*HIFT_CUTS, HIFT_FRAMES), counts, strict=True):
        (pcm,) = rows.push([0], [vectors["mel"][begin:end]], [end == HIFT_FRAMES])
        assert len(pcm) == count
        pieces.append(pcm)
        begin = end
    close(torch.cat(pieces), vectors["pieces"])
