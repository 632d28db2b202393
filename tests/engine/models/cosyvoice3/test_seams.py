"""Where chunks meet there is no more to hear than where any two mel frames do, with all blocks as context and with few.

The source of this vocoder steps from frame to frame, so that frames are what seams are compared with.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache
from unittest.mock import patch

import numpy as np
import pytest
import torch

from engine.models.base import Pcm
from engine.models.cosyvoice3 import decode_stage
from engine.models.cosyvoice3.config import HiftConfig
from engine.models.cosyvoice3.decode_stage import CosyDecodeStage
from engine.models.cosyvoice3.flow import Flow
from engine.models.cosyvoice3.hift import Hift
from engine.models.cosyvoice3.hift_source import HarmonicSource
from engine.models.cosyvoice3.settings import CosyVoice3Settings, FlowSettings
from tests.audio import seam_report
from tests.engine.models.cosyvoice3.flow_fixtures import SMALL, Voice, fill
from tests.fakes.cosyvoice3_checkpoint import hift_tensors
from tests.fakes.cosyvoice3_reference import chunk_mask, mel_of_tokens, pcm_of_mel

RATE, MEL_SAMPLES, TOKEN_SAMPLES = 24_000, 480, 960
NUM_TOKENS, BLOCK_TOKENS = 150, 5
SEEDS = 7, 8, 10
# Of 177 seams the share is above this by chance once in some hundred tries.
LIKE_ANY_OTHER = 0.57
CONFIG = dataclasses.replace(SMALL, input_size=80, dit=dataclasses.replace(SMALL.dit, mel_bins=80))
HIFT = HiftConfig(base_channels=16, f0_channels=8)


@cache
def flow() -> Flow:
    made = fill(Flow(CONFIG))
    made.fuse()
    return made


@cache
def hift() -> Hift:
    made = Hift(HIFT)
    made.m_source = HarmonicSource(HIFT, 10)
    made.load_state_dict(hift_tensors(HIFT, seed=5))
    made.fuse()
    return made.requires_grad_(False)


@cache
def speaker() -> Voice:
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, CONFIG.vocab_size, (8,), generator=generator)
    return Voice(tokens, torch.randn(16, 80, generator=generator), torch.randn(6, generator=generator))


def tokens(seed: int = SEEDS[0]) -> list[int]:
    drawn: list[int] = torch.randint(0, 30, (NUM_TOKENS,), generator=torch.Generator().manual_seed(seed)).tolist()
    return drawn


@cache
def spoken(context_blocks: int | None, num_pages: int = 60, seed: int = SEEDS[0]) -> list[Pcm]:
    settings = CosyVoice3Settings(flow=FlowSettings(context_blocks=context_blocks))
    with patch.object(decode_stage, "num_pages", return_value=num_pages):
        stage = CosyDecodeStage(flow(), hift(), 1, settings, torch.device("cpu"), 1)
    slot = stage.reserve()
    assert slot is not None
    stage.prime(slot, speaker().reference("anna"))
    chunks = []
    for token in tokens(seed):
        stage.feed(slot, [token])
        while stage.busy:
            chunks += [chunk.pcm for chunk in stage.step({})]
    stage.finalize(slot)
    while stage.num_pending(slot):
        chunks += [chunk.pcm for chunk in stage.step({})]
    assert stage.num_bounded == (num_pages < 10)
    return chunks


def seams_of(chunks: Sequence[Pcm]) -> list[int]:
    """Where chunks meet, and where blocks of the flow do, of which the first holds two tokens that are heard."""
    ends = np.cumsum([len(chunk) for chunk in chunks])[:-1]
    return sorted({*ends.tolist(), *range(2 * TOKEN_SAMPLES, NUM_TOKENS * TOKEN_SAMPLES, BLOCK_TOKENS * TOKEN_SAMPLES)})


def scores(pcm: Pcm, places: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    report = seam_report.seam_report(pcm, places, RATE)
    return np.array([report.jump_ratio, report.spectral_ratio])


def share_below(pcm: Pcm, seams: Sequence[int]) -> list[float]:
    """By jump and by spectrum: how often a seam scores above another meeting of two frames; as often as not is 0.5.

    Ranks and no means: weights are random, and now and then a frame is far louder than its neighbours.
    """
    inside = np.arange(TOKEN_SAMPLES, len(pcm) - TOKEN_SAMPLES, MEL_SAMPLES)
    at_seams = np.intersect1d(inside, seams)
    elsewhere = np.setdiff1d(inside, seams)
    signal = pcm.astype(np.float64)
    found = []
    for score in (seam_report._jump_scores(signal, RATE)[inside], seam_report._spectral_scores(signal, inside, RATE)):
        mine, others = score[np.searchsorted(inside, at_seams)], score[np.searchsorted(inside, elsewhere)]
        found.append(float(np.mean(mine[:, None] > others)))
    return found


def one_pass(context_blocks: int | None) -> Pcm:
    voice = speaker()
    num_frames = 2 * (NUM_TOKENS + len(voice.tokens))
    mask = chunk_mask(num_frames, 2 * BLOCK_TOKENS, context_blocks, first_block=1)
    mel = mel_of_tokens(flow(), torch.tensor(tokens()), voice.tokens, voice.mel, voice.embedding, True, mask)
    with torch.inference_mode():
        pcm: Pcm = pcm_of_mel(hift(), mel.t()[None])[0].numpy()
    return pcm


@pytest.mark.parametrize("context_blocks", [None, 2])
def test_chunks_are_pieces_of_one_pass(context_blocks: int | None) -> None:
    """So that where they meet is like any other place of it. Phase adds up what mel differs by in its last digits."""
    chunks, whole = spoken(context_blocks), one_pass(context_blocks)
    pcm = np.concatenate(chunks)
    assert len(chunks) > 20
    assert len(pcm) == len(whole) == NUM_TOKENS * TOKEN_SAMPLES
    assert np.abs(pcm - whole).max() < 0.1 * whole.std()
    np.testing.assert_allclose(scores(pcm, seams_of(chunks)), scores(whole, seams_of(chunks)), rtol=0.03)


ONE_BLOCK = pytest.param(1, 60, marks=pytest.mark.slow)


@pytest.mark.parametrize(("context_blocks", "num_pages"), [(None, 60), ONE_BLOCK, (None, 7)])
def test_seams_do_not_stand_out(context_blocks: int | None, num_pages: int) -> None:
    """With all blocks as context, with one, and when memory gives out on the way."""
    every = []
    for seed in SEEDS:
        chunks = spoken(context_blocks, num_pages, seed)
        every.append(share_below(np.concatenate(chunks), seams_of(chunks)))
    assert np.mean(every, 0).max() < LIKE_ANY_OTHER


def test_chunks_each_spoken_for_itself_are_heard() -> None:
    """A fresh vocoder for every block of the same mel."""
    voice, every = speaker(), []
    for seed in SEEDS:
        mel = mel_of_tokens(flow(), torch.tensor(tokens(seed)), voice.tokens, voice.mel, voice.embedding, True)
        with torch.inference_mode():
            pieces = [pcm_of_mel(hift(), piece.t()[None])[0].numpy() for piece in mel[4:].split(2 * BLOCK_TOKENS)]
        ends = np.cumsum([len(piece) for piece in pieces])[:-1].tolist()
        every.append(share_below(np.concatenate(pieces), ends))
    assert np.mean(every, 0).max() > LIKE_ANY_OTHER
