"""Where chunks meet there is no more to hear than where any two mel frames do, with all blocks as context and with few.

The source of this vocoder steps from frame to frame, so that frames are what seams are compared with.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
import torch

from engine.models.base import Pcm
from engine.models.cosyvoice3.config import HiftConfig
from engine.models.cosyvoice3.decode_stage import CosyDecode
from engine.models.cosyvoice3.dit import chunk_mask
from engine.models.cosyvoice3.flow import Flow
from engine.models.cosyvoice3.hift import Hift
from engine.models.cosyvoice3.settings import CosyVoice3Settings, FlowSettings
from engine.models.cosyvoice3.source import Source
from sessions.audio.seam import seam_report
from tests.engine.models.cosyvoice3.flows import SMALL, Voice, fill
from tests.fakes.cosyvoice3_checkpoint import hift_tensors

RATE, MEL_SAMPLES, TOKEN_SAMPLES = 24_000, 480, 960
NUM_TOKENS, BLOCK_TOKENS = 150, 5
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
    made.m_source = Source(HIFT, 10)
    made.load_state_dict(hift_tensors(HIFT, seed=5))
    made.fuse()
    return made.requires_grad_(False)


@cache
def speaker() -> Voice:
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, CONFIG.vocab_size, (8,), generator=generator)
    return Voice(tokens, torch.randn(16, 80, generator=generator), torch.randn(6, generator=generator))


def tokens() -> list[int]:
    drawn: list[int] = torch.randint(0, 30, (NUM_TOKENS,), generator=torch.Generator().manual_seed(7)).tolist()
    return drawn


@cache
def spoken(context_blocks: int | None) -> list[Pcm]:
    settings = CosyVoice3Settings(flow=FlowSettings(memory_mb=64, context_blocks=context_blocks))
    stage = CosyDecode(flow(), hift(), 1, settings, torch.device("cpu"), 1)
    slot = stage.reserve()
    assert slot is not None
    stage.prime(slot, speaker().reference("anna"))
    chunks = []
    for token in tokens():
        stage.feed(slot, [token])
        while stage.busy:
            chunks += [chunk.pcm for chunk in stage.step({})]
    stage.finalize(slot)
    while stage.num_pending(slot):
        chunks += [chunk.pcm for chunk in stage.step({})]
    return chunks


def seams_of(chunks: Sequence[Pcm]) -> list[int]:
    """Where chunks meet, and where blocks of the flow do, of which the first holds two tokens that are heard."""
    ends = np.cumsum([len(chunk) for chunk in chunks])[:-1]
    return sorted({*ends.tolist(), *range(2 * TOKEN_SAMPLES, NUM_TOKENS * TOKEN_SAMPLES, BLOCK_TOKENS * TOKEN_SAMPLES)})


def scores(pcm: Pcm, places: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    report = seam_report(pcm, places, RATE)
    return np.array([report.jump_ratio, report.spectral_ratio])


def stand_out(pcm: Pcm, seams: Sequence[int]) -> float:
    """By how much seams score above the same places some frames later, of which there are no two alike: weights are
    random, and now and then a frame is far louder than its neighbours."""
    later = [[place + count * MEL_SAMPLES for place in seams] for count in range(1, 2 * BLOCK_TOKENS)]
    others = [scores(pcm, places) for places in later if len(set(places) & set(seams)) < len(seams) // 4]
    assert len(others) > 5
    return float((scores(pcm, seams) / np.max(others, 0)).max())


def one_pass(context_blocks: int | None) -> Pcm:
    voice = speaker()
    num_frames = 2 * (NUM_TOKENS + len(voice.tokens))
    mask = chunk_mask(num_frames, 2 * BLOCK_TOKENS, context_blocks, first_block=1)
    mel = flow().one_pass(torch.tensor(tokens()), voice.tokens, voice.mel, voice.embedding, True, mask)
    with torch.inference_mode():
        pcm: Pcm = hift().one_pass(mel.t()[None])[0].numpy()
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


def test_with_few_blocks_as_context_seams_do_not_stand_out() -> None:
    chunks = spoken(2)
    assert stand_out(np.concatenate(chunks), seams_of(chunks)) < 1.1


def test_chunks_each_spoken_for_itself_are_heard() -> None:
    """A fresh vocoder for every block of the same mel."""
    voice = speaker()
    mel = flow().one_pass(torch.tensor(tokens()), voice.tokens, voice.mel, voice.embedding, True)
    with torch.inference_mode():
        pieces = [hift().one_pass(piece.t()[None])[0].numpy() for piece in mel[4:].split(2 * BLOCK_TOKENS)]
    pcm = np.concatenate(pieces)
    assert stand_out(pcm, np.cumsum([len(p) for p in pieces])[:-1].tolist()) > 1.5
