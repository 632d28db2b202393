"""The windowed stage against the exact one: the same sound where its context reaches back to the start, and where it
does not, seams that a raw cut lets be heard and a crossfade heals.

Random upsampling kernels put a pattern of their own on every frame, which would drown the seams. So these codecs
interpolate; everything else in them is random.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api import Pcm, SamplingParams, SpeechChunk
from engine.config import EngineConfig
from engine.launch import EMBEDDED_VOICE
from engine.layers.streaming import CausalConvTranspose1d, Snake
from engine.load import load_engine
from engine.models.base import DecodedAudio, DecodeStage
from engine.models.qwen3_tts.codec_decoder import CodecDecoder
from engine.models.qwen3_tts.config import read_config
from engine.models.qwen3_tts.load import load_codec
from engine.models.qwen3_tts.prompt import QwenSequence
from engine.runtime.codec_runners import make_eager_stage
from sessions.audio.crossfade import Crossfader
from tests.audio.seam_report import seam_report
from tests.engine.engine_harness import EngineHarness
from tests.engine.runtime.test_streaming_stage import frames_of
from tests.engine.splits import cuts_of
from tests.fakes.windowed_stage import WindowedDecodeStage

NUM_FRAMES, RATE, FRAME = 48, 24_000, 1_920
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def smooth_codec(tiny_folder: Path) -> CodecDecoder:
    codec = load_codec(tiny_folder, read_config(tiny_folder), torch.float32, torch.device("cpu"))
    for layer in codec.modules():
        if isinstance(layer, CausalConvTranspose1d):
            interpolate(layer)
        if isinstance(layer, Snake):
            layer.alpha.zero_()
            layer.fuse()
    return codec


def interpolate(layer: CausalConvTranspose1d) -> None:
    """Hold (kernel = stride) or go straight from one input to the next (kernel = 2 * stride)."""
    weight, stride = layer.conv.weight, layer.stride
    kernel = weight.shape[-1]
    triangle = 1 - (torch.arange(kernel) - (stride - 0.5)).abs() / stride
    shape = torch.ones(kernel) if kernel == stride else triangle
    weight.copy_(weight[..., :1].clone() * kernel**0.5 * shape)


def decode(stage: DecodeStage, frames: list[list[int]], pieces: list[int]) -> list[DecodedAudio]:
    """Feed ``frames`` in ``pieces``, a round after each, then finalize and drain."""
    slot = stage.reserve()
    assert slot is not None
    queue, chunks = iter(frames), []
    for piece in pieces:
        for _ in range(piece):
            stage.feed(slot, next(queue))
        chunks += stage.step({slot: 0.0})
    stage.finalize(slot)
    while stage.num_pending(slot):
        assert stage.busy
        chunks += stage.step({slot: 0.0})
    assert not stage.busy
    stage.release(slot)
    stage.release_quarantined()
    return chunks


def as_speech(chunks: list[DecodedAudio]) -> list[SpeechChunk]:
    found, end = [], 0
    for index, chunk in enumerate(chunks):
        start = end - chunk.overlap_samples
        end = start + len(chunk.pcm)
        last = index == len(chunks) - 1
        found.append(SpeechChunk("r", start, chunk.pcm, chunk.provisional_tail_samples, last))
    return found


def raw(chunks: list[DecodedAudio]) -> Pcm:
    """Cut to fit: what comes again is dropped."""
    return np.concatenate([chunk.pcm[chunk.overlap_samples :] for chunk in chunks])


def crossfaded(chunks: list[DecodedAudio]) -> Pcm:
    crossfader = Crossfader()
    return np.concatenate([crossfader.push(chunk) for chunk in as_speech(chunks)])


def seams(pieces: list[int], overlap_samples: int) -> list[int]:
    """Middles of the crossfades between pieces."""
    return [int(end) * FRAME - overlap_samples // 2 for end in np.cumsum(pieces)[:-1]]


@given(pieces=cuts_of(16, max_piece=8), overlap_samples=st.sampled_from([0, 1, 480, FRAME]))
@settings(max_examples=8)
def test_with_all_frames_as_context_it_is_the_exact_stage(
    smooth_codec: CodecDecoder, pieces: list[int], overlap_samples: int
) -> None:
    frames = frames_of(16)
    exact = raw(decode(make_eager_stage(smooth_codec, 1, 0.0), frames, pieces))
    chunks = decode(WindowedDecodeStage(smooth_codec, 1, 0.0, 16, overlap_samples), frames, pieces)
    np.testing.assert_allclose(raw(chunks), exact, atol=TOLERANCE, rtol=0)
    np.testing.assert_allclose(crossfaded(chunks), exact, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("context_frames", [1, 4])
@pytest.mark.parametrize("piece", [1, 2, 4])
def test_raw_cuts_are_heard_and_crossfaded_ones_are_not(
    smooth_codec: CodecDecoder, context_frames: int, piece: int
) -> None:
    pieces, overlap_samples = [piece] * (NUM_FRAMES // piece), 480
    stage = WindowedDecodeStage(smooth_codec, 1, 0.0, context_frames, overlap_samples)
    chunks = decode(stage, frames_of(NUM_FRAMES), pieces)
    cut = seam_report(raw(chunks), seams(pieces, 0), RATE)
    assert not cut.passes
    assert min(cut.jump_ratio, cut.spectral_ratio) > 5
    healed = seam_report(crossfaded(chunks), seams(pieces, overlap_samples), RATE)
    assert healed.passes, healed


@pytest.mark.parametrize("piece", [1, 2, 4])
def test_exact_stage_has_no_seams(smooth_codec: CodecDecoder, piece: int) -> None:
    pieces = [piece] * (NUM_FRAMES // piece)
    chunks = decode(make_eager_stage(smooth_codec, 1, 0.0), frames_of(NUM_FRAMES), pieces)
    assert seam_report(raw(chunks), seams(pieces, 0), RATE).passes
    np.testing.assert_array_equal(crossfaded(chunks), raw(chunks))
    for speech, chunk in zip(as_speech(chunks), chunks, strict=True):
        assert len(speech.pcm) == len(chunk.pcm), "nothing is held back"


@given(pieces=cuts_of(24, max_piece=10), context_frames=st.integers(1, 5), overlap_samples=st.integers(0, FRAME))
@settings(max_examples=10)
def test_tail_is_repeated_in_place_without_loss(
    smooth_codec: CodecDecoder, pieces: list[int], context_frames: int, overlap_samples: int
) -> None:
    stage = WindowedDecodeStage(smooth_codec, 1, 0.0, context_frames, overlap_samples)
    chunks = decode(stage, frames_of(24), pieces)
    owed = 0
    for chunk in chunks:
        assert chunk.overlap_samples == owed
        owed = chunk.provisional_tail_samples
        assert owed in (0, overlap_samples)
    assert owed == 0
    assert len(crossfaded(chunks)) == len(raw(chunks)) == 24 * FRAME


# -- on speech ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def voice() -> CodecDecoder:
    return load_codec(EMBEDDED_VOICE, read_config(EMBEDDED_VOICE), torch.float32, torch.device("cpu"))


@pytest.fixture(scope="module")
def spoken_frames() -> list[list[int]]:
    """What the embedded voice says, as codes."""
    loaded = load_engine(EMBEDDED_VOICE, EngineConfig(kv_memory_mb=32, lazy_graph_capture=True), "cpu", "float32", True)
    bench = EngineHarness(loaded.make_engine())
    text = "the quick brown fox jumps over the lazy dog and runs away into the forest"
    row = bench.request(bench.submit(text=text, text_closed=True, sampling=SamplingParams(seed=4))).row
    bench.run()
    assert isinstance(row, QwenSequence)
    assert len(row.codes) >= 30
    return row.codes


@pytest.mark.parametrize("context_frames", [1, 2])
def test_crossfade_removes_seams_in_speech(
    voice: CodecDecoder, spoken_frames: list[list[int]], context_frames: int
) -> None:
    pieces = [2] * (len(spoken_frames) // 2)
    frames = spoken_frames[: sum(pieces)]
    chunks = decode(WindowedDecodeStage(voice, 1, 0.0, context_frames, 480), frames, pieces)
    assert not seam_report(raw(chunks), seams(pieces, 0), RATE).passes
    assert seam_report(crossfaded(chunks), seams(pieces, 480), RATE).passes
    exact = decode(make_eager_stage(voice, 1, 0.0), frames, pieces)
    assert seam_report(raw(exact), seams(pieces, 0), RATE).passes


def test_speech_of_the_embedded_voice_begins_without_a_tick(
    voice: CodecDecoder, spoken_frames: list[list[int]]
) -> None:
    speech = raw(decode(make_eager_stage(voice, 1, 0.0), spoken_frames, [1] * len(spoken_frames)))
    assert np.abs(speech[: RATE // 50]).max() < 0.002
    assert np.abs(speech).max() > 0.1
