"""The codec decoder: streaming equals offline, and the program equals the modules."""

from __future__ import annotations

from copy import deepcopy
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.config import EngineConfig
from engine.launch import EMBEDDED_VOICE
from engine.layers.cpu import pack_linears
from engine.models.qwen3_tts.codec_decoder import CodecDecoder
from engine.models.qwen3_tts.codec_program import CodecProgram, ModuleProgram
from engine.models.qwen3_tts.config import read_config
from engine.models.qwen3_tts.cpu_codec import CpuCodecDecoder
from engine.models.qwen3_tts.load import load_codec, load_family
from engine.models.qwen3_tts.source_filter import HOP, SourceFilterDecoder, VocoderPast
from tests.engine.splits import cuts_of
from tests.fakes.checkpoints import TINY

# Frames: more than twice the transformer's window of 12, and more than the convolutions' reach of 11.
LENGTH = 30
# Of samples in [-1, 1] with a deviation of 0.3: the same sums, in another order for another shape.
TOLERANCE = 2e-5
shared = settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def some_codes(num_rows: int, length: int = LENGTH, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, TINY["codes"], (num_rows, TINY["books"], length), generator=generator)


PARTLY_FUSED = [pytest.param(name, marks=pytest.mark.slow) for name in ("fused", "fused and packed")]


@pytest.fixture(params=["plain", *PARTLY_FUSED, "fused, packed, channels last"])
def codec(request: pytest.FixtureRequest, plain_codec: CodecDecoder) -> CodecDecoder:
    codec = deepcopy(plain_codec)
    if request.param != "plain":
        codec.fuse()
    if "packed" in request.param:
        pack_linears(codec)
    if "channels last" in request.param:
        codec.streaming = CpuCodecDecoder(codec)
    return codec


@given(pieces=cuts_of(LENGTH), num_rows=st.sampled_from([1, 2]))
@shared
def test_any_cut_sounds_like_one_piece(
    codec: CodecDecoder, plain_codec: CodecDecoder, pieces: list[int], num_rows: int
) -> None:
    codes = some_codes(num_rows)
    offline = plain_codec(codes)
    assert 0.05 < offline.std() < 0.5, "neither silent nor clipped, or nothing would be compared"
    state = codec.new_state(num_rows)
    streamed = torch.cat([codec(piece, state) for piece in codes.split(pieces, dim=-1)], dim=-1)
    torch.testing.assert_close(streamed, offline, atol=TOLERANCE, rtol=0)
    assert state.num_frames.tolist() == [LENGTH] * num_rows


@given(keep=st.integers(1, LENGTH - 1), seed=st.integers(1, 99))
@shared
def test_what_comes_later_changes_nothing_before(codec: CodecDecoder, keep: int, seed: int) -> None:
    codes, other = some_codes(1), some_codes(1, seed=seed)
    changed = torch.cat((codes[..., :keep], other[..., keep:]), dim=-1)
    samples = keep * codec.frame_samples
    torch.testing.assert_close(codec(changed)[:, :samples], codec(codes)[:, :samples], atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(codec(codes[..., :keep]), codec(codes)[:, :samples], atol=TOLERANCE, rtol=0)


def test_every_codebook_of_every_frame_is_heard(plain_codec: CodecDecoder) -> None:
    codes = some_codes(1)
    before = plain_codec(codes)
    for book in range(TINY["books"]):
        changed = codes.clone()
        changed[0, book, 5] = (changed[0, book, 5] + 1) % TINY["codes"]
        difference = (plain_codec(changed) - before)[0].abs().view(LENGTH, -1).amax(-1)
        assert difference[:5].max() == 0
        assert difference[5] > 1e-3


def test_streams_of_other_ages_share_a_call(plain_codec: CodecDecoder) -> None:
    """One row joins when the other is 17 frames old."""
    codes = some_codes(2)
    state = plain_codec.new_state(2)
    old = type(state)(state.values[:1], state.num_frames[:1])
    first = plain_codec(codes[:1, :, :17], old)
    both = plain_codec(torch.cat((codes[:1, :, 17:25], codes[1:, :, :8])), state)
    torch.testing.assert_close(
        torch.cat((first[0], both[0])), plain_codec(codes[:1, :, :25])[0], atol=TOLERANCE, rtol=0
    )
    torch.testing.assert_close(both[1], plain_codec(codes[1:, :, :8])[0], atol=TOLERANCE, rtol=0)


def test_unused_codebook_entry_divides_by_no_zero(plain_codec: CodecDecoder) -> None:
    book = plain_codec.quantizer.rvq_first.vq.layers[0]._codebook
    assert book.cluster_usage[0] == 0
    expected = book.embedding_sum[0] / 1e-5
    torch.testing.assert_close(book.table()[0], expected)
    assert torch.isfinite(plain_codec(torch.zeros(1, TINY["books"], 2, dtype=torch.long))).all()


def test_dequantizing_is_two_projected_sums(plain_codec: CodecDecoder) -> None:
    """q = W_first tab_0[c_0] + W_rest (tab_1[c_1] + ...) (spec 5.1), fused or not."""
    codes, quantizer = some_codes(2, 4), plain_codec.quantizer
    tables = [*quantizer.rvq_first.tables(), *quantizer.rvq_rest.tables()]
    vectors = [table[codes[:, j]] for j, table in enumerate(tables)]
    first = vectors[0] @ quantizer.rvq_first.output_proj.weight[..., 0].t()
    rest = sum(vectors[1:]) @ quantizer.rvq_rest.output_proj.weight[..., 0].t()
    expected = (first + rest).transpose(1, 2)
    torch.testing.assert_close(plain_codec.dequantize(codes), expected, atol=1e-4, rtol=1e-4)
    fused = deepcopy(plain_codec)
    fused.fuse()
    torch.testing.assert_close(fused.dequantize(codes), expected, atol=1e-4, rtol=1e-4)


CPU = torch.device("cpu")
SLOT = 1


def program_of(folder: Path) -> CodecProgram:
    config = EngineConfig(graphs=True, max_running_requests=1, max_batch_size=1, max_frames=9_000, num_blocks=4)
    codec = load_family(folder, config, CPU, torch.float32).codec
    assert codec is not None
    with torch.inference_mode():
        program = codec.make_program(config, codec.new_ring(config, CPU))
    assert isinstance(program, CodecProgram)
    return program


@torch.inference_mode()
def speak(program: CodecProgram, first: int, num_frames: int) -> Tensor:
    """Frames ``first``.. of a stream, whose frames before those were all zero: [frames, samples]."""
    program.state[SLOT] = program.past[:, SLOT] = 0
    codes = torch.randint(64, (num_frames, program.ring.shape[2]), generator=torch.Generator().manual_seed(1))
    heard = []
    for number, frame in enumerate(codes):
        program.ring[SLOT, 0] = frame
        program.slots[0] = program.sources[0] = SLOT
        program.starts[0], program.first[0] = 0, first + number
        program.run(1, 1)
        heard.append(program.pcm[: program.frame_samples].clone())
    return torch.stack(heard)


def test_a_stream_of_any_length_goes_on_alike(tiny_folder: Path) -> None:
    program = program_of(tiny_folder)
    early, late = speak(program, 1_000, 30), speak(program, 8_180, 30)
    assert (early - late).abs().max() < 1e-5


# -- the decoder of the embedded voice ---------------------------------------------------------------------------

# Products of other shapes round the pitch otherwise, by up to 1e-6 of it; the phase of the pulses is the sum of all
# pitches before, and their harmonics multiply it. The largest difference seen is 0.006.
PHASE_TOLERANCE = 0.008
RENDER_TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=["plain", "packed"])
def vocoder(request: pytest.FixtureRequest) -> SourceFilterDecoder:
    codec = load_codec(EMBEDDED_VOICE, read_config(EMBEDDED_VOICE), torch.bfloat16, CPU)
    assert isinstance(codec, SourceFilterDecoder)
    if request.param == "packed":
        pack_linears(codec)
    if "channels last" in request.param:
        codec.streaming = CpuCodecDecoder(codec)
    return codec


def vocoder_codes(num_rows: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 512, (num_rows, 8, LENGTH), generator=torch.Generator().manual_seed(seed))


@torch.inference_mode()
def in_pieces(codec: SourceFilterDecoder, codes: Tensor, pieces: list[int]) -> Tensor:
    state = codec.new_state(len(codes))
    return torch.cat([codec(piece, state) for piece in codes.split(pieces, dim=-1)], dim=-1)


@lru_cache(2)
@torch.inference_mode()
def in_one_piece(vocoder: SourceFilterDecoder, num_rows: int) -> Tensor:
    return vocoder(vocoder_codes(num_rows))


@given(pieces=cuts_of(LENGTH), num_rows=st.sampled_from([1, 3]))
@shared
def test_vocoder_speech_is_the_same_in_any_chunks(
    vocoder: SourceFilterDecoder, pieces: list[int], num_rows: int
) -> None:
    codes, whole = vocoder_codes(num_rows), in_one_piece(vocoder, num_rows)
    assert 0.02 < whole.std() < 0.5
    torch.testing.assert_close(in_pieces(vocoder, codes, pieces), whole, atol=PHASE_TOLERANCE, rtol=0)


@given(pieces=cuts_of(LENGTH))
@shared
def test_vocoder_renders_given_controls_alike_in_any_chunks(vocoder: SourceFilterDecoder, pieces: list[int]) -> None:
    """With the same pitch no phase differs: tail, crossfade and phase go on exactly at each border."""
    with torch.inference_mode():
        controls = vocoder.read_controls(vocoder.dequantize(vocoder_codes(2)))
        controls = controls.every_hop(controls.at(slice(1)))
        hops = controls.hz.shape[1] // LENGTH
        noise = torch.randn(2, LENGTH * hops, HOP, generator=torch.Generator().manual_seed(1))
        start = VocoderPast.none(controls)
        whole, _ = vocoder.vocoder(controls, noise.flatten(1), start)
        spoken, past, first = [], start, 0
        for piece in pieces:
            place = slice(first * hops, (first + piece) * hops)
            speech, past = vocoder.vocoder(controls.at(place), noise[:, place].flatten(1), past)
            spoken.append(speech)
            first += piece
    torch.testing.assert_close(torch.cat(spoken, 1), whole, atol=RENDER_TOLERANCE, rtol=0)


def test_vocoder_rows_of_other_ages_do_not_change_each_other(vocoder: SourceFilterDecoder) -> None:
    """One row joins when the other is 17 frames old; a third is not finite."""
    codes = vocoder_codes(2)
    state = vocoder.new_state(3)
    state.values[2] = float("nan")
    old = type(state)(state.values[:1], state.num_frames[:1])
    with torch.inference_mode():
        first = vocoder(codes[:1, :, :17], old)
        rows = vocoder(torch.cat((codes[:1, :, 17:25], codes[1:, :, :8], codes[:1, :, :8])), state)
    alone = [in_pieces(vocoder, codes[row : row + 1, :, :length], [length])[0] for row, length in ((0, 25), (1, 8))]
    torch.testing.assert_close(torch.cat((first[0], rows[0])), alone[0], atol=PHASE_TOLERANCE, rtol=0)
    torch.testing.assert_close(rows[1], alone[1], atol=PHASE_TOLERANCE, rtol=0)


def test_vocoder_speech_begins_at_silence(vocoder: SourceFilterDecoder) -> None:
    """The first hop is faded in: no code makes a tick."""
    whole = in_pieces(vocoder, vocoder_codes(12), [1, LENGTH - 1]).abs()
    assert (whole[:, 0] < 1e-3 * whole.amax(1)).all()


def test_vocoder_needs_no_later_code(vocoder: SourceFilterDecoder) -> None:
    codes = vocoder_codes(1)
    changed = torch.cat((codes[..., :9], vocoder_codes(1, seed=1)[..., 9:]), dim=-1)
    before, after = (in_pieces(vocoder, some, [LENGTH]).split(9 * 1920, 1) for some in (codes, changed))
    torch.testing.assert_close(before[0], after[0], atol=PHASE_TOLERANCE, rtol=0)
    assert (before[1] - after[1]).abs().max() > 0.05


def test_vocoder_program_makes_the_speech_of_its_modules() -> None:
    """Two slots of other ages over static buffers; a slot that begins anew has no past."""
    config = EngineConfig(graphs=True, max_running_requests=2, max_batch_size=2, max_frames=90, num_blocks=4)
    family = load_family(EMBEDDED_VOICE, config, CPU, torch.float32).codec
    assert family is not None
    codes = vocoder_codes(2)
    with torch.inference_mode():
        program = family.make_program(config, family.new_ring(config, CPU))
        assert isinstance(program, ModuleProgram)
        for slot, rows, starts in ((2, codes[1:], [0]), (1, codes[:1], [0]), (2, codes[1:], [2, 0])):
            for start in starts:
                program.ring[slot, :8] = rows[0, :, start : start + 8].t()
                program.slots[0] = program.sources[0] = slot
                program.starts[0], program.first[0] = 0, 0 if start == 0 else 1
                program.run(1, 8)
                assert program.finite[0]
        whole = family.module(codes[1:, :, :8])
    torch.testing.assert_close(program.pcm[: 8 * 1920], whole[0], atol=PHASE_TOLERANCE, rtol=0)
