"""The watermark: the same samples however the stream is split, and what is found of it in a recording."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.audio.formats.registry import stream_encoder
from sessions.audio.g711 import mulaw_to_pcm, pcm_to_mulaw
from sessions.audio.pcm import Pcm
from sessions.audio.recordings.decode import decode_recording
from sessions.audio.resampler import Resampler
from sessions.audio.segment_joiner import hann_ramp
from sessions.audio.watermark.detector import (
    DETECT_RATE,
    HOPS_PER_FRAME,
    WINDOW_S,
    MarkedSpan,
    cell_energies,
    cell_scores,
    common_payload,
    find_watermark,
    score_cells,
)
from sessions.audio.watermark.embedder import Watermark, band_depths_db, frame_filters
from sessions.audio.watermark.pattern import NUM_CODE_BITS, PAYLOAD_BITS, PERIOD_FRAMES, CellPattern, decode, encode
from sessions.config import AudioFormat, Encoding
from tests.sessions.audio.signals import noise, pieces, speech_like

RATE = 24_000
KEY = b"k" * 32
PAYLOAD = 0xC0FFEE42
SIGNAL = speech_like(8 * RATE, RATE, 3)


@cache
def marked() -> Pcm:
    return Watermark(KEY, PAYLOAD).create_embedder(RATE).push(SIGNAL)


def find(pcm: Pcm, rate: int = RATE, key: bytes = KEY) -> list[MarkedSpan]:
    return find_watermark(resample(pcm, rate, DETECT_RATE), key)


def resample(pcm: Pcm, from_rate: int, to_rate: int) -> Pcm:
    resampler = Resampler(from_rate, to_rate)
    return np.concatenate([resampler.push(pcm), resampler.flush()])


@given(pieces(SIGNAL[: 2 * RATE]))
def test_any_split_gives_the_same_samples_at_once(split: list[Pcm]) -> None:
    embedder = Watermark(KEY, PAYLOAD).create_embedder(RATE)
    out = [embedder.push(piece) for piece in split]
    assert [piece.size for piece in out] == [piece.size for piece in split]
    assert np.array_equal(np.concatenate(out), marked()[: 2 * RATE])


@given(pieces(SIGNAL[: 2 * RATE]), st.integers(0, 9))
def test_mark_goes_on_behind_samples_that_are_skipped(split: list[Pcm], num_skipped: int) -> None:
    embedder = Watermark(KEY, PAYLOAD).create_embedder(RATE)
    for piece in split[:num_skipped]:
        embedder.skip(piece)
    out = np.concatenate([np.empty(0, np.float32), *map(embedder.push, split[num_skipped:])])
    assert np.array_equal(out, marked()[2 * RATE - out.size : 2 * RATE])


@pytest.mark.parametrize("sample_rate", [16_000, 22_050, 24_000])
def test_products_of_matrices_equal_correlations(sample_rate: int) -> None:
    frame_samples, pcm = sample_rate // 50, noise(sample_rate // 5)
    filters, fade = frame_filters(KEY, PAYLOAD, sample_rate), hann_ramp(sample_rate // 200)
    signal = np.concatenate([np.zeros(filters.shape[1] - 1, np.float32), pcm])
    outputs = np.array([np.correlate(signal, filters[frame], "valid") for frame in range(-1, 10)])
    weights = np.ones((10, frame_samples), np.float32)
    weights[:, : fade.size] = fade
    places = np.arange(pcm.size).reshape(10, -1)
    before, after = outputs[np.arange(10)[:, None], places], outputs[np.arange(1, 11)[:, None], places]
    marked = Watermark(KEY, PAYLOAD).create_embedder(sample_rate).push(pcm)
    assert marked == pytest.approx((before + (after - before) * weights).reshape(-1), abs=1e-6)


def test_mark_changes_no_level_and_no_silence() -> None:
    assert not Watermark(KEY, 1).create_embedder(RATE).push(np.zeros(RATE, np.float32)).any()
    ratio = np.sqrt(np.mean(marked() ** 2) / np.mean(SIGNAL**2))
    assert ratio == pytest.approx(1, abs=0.05)
    assert np.abs(marked()).max() <= np.abs(SIGNAL).max() * 10 ** (band_depths_db().max() / 20)


@pytest.mark.parametrize("sample_rate", [16_000, 24_000, 48_000])
def test_filters_repeat_by_period_at_any_rate(sample_rate: int) -> None:
    filters = frame_filters(KEY, PAYLOAD, sample_rate)
    assert filters.shape == (PERIOD_FRAMES, sample_rate * 6 // 1000)
    assert not filters.flags.writeable


def through(encoding: Encoding, bitrate: int) -> Pcm:
    encoder = stream_encoder(AudioFormat(encoding=encoding, sample_rate=RATE, bitrate=bitrate))
    return decode_recording(encoder.push(marked()) + encoder.finish(), RATE, 10)


ATTACKS = {
    "clean": marked,
    "opus": lambda: through(Encoding.OGG_OPUS, 16_000),
    "mp3": lambda: through(Encoding.MP3, 64_000),
    "mulaw": lambda: resample(mulaw_to_pcm(pcm_to_mulaw(resample(marked(), RATE, 8_000))), 8_000, RATE),
    "loud": lambda: np.clip(2 * marked(), -1, 1),
    "soft": lambda: marked() / 8,
    "cut": lambda: marked()[31_007:],
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_mark_is_found_and_read_after_attack(attack: str) -> None:
    [span] = find(ATTACKS[attack]())
    assert span.payload == PAYLOAD
    assert span.score > 8
    assert span.start_s == 0
    assert 6 < span.end_s < 8.2


def test_mark_is_found_in_two_seconds() -> None:
    assert find(marked()[RATE : 3 * RATE])


@pytest.mark.parametrize(
    "pcm",
    [SIGNAL, marked(), noise(8 * RATE), np.zeros(RATE, np.float32), SIGNAL[:100], np.zeros(0, np.float32)],
    ids=["unmarked", "marked by another key", "noise", "silence", "short", "empty"],
)
def test_no_mark_of_this_key_is_found(pcm: Pcm) -> None:
    assert find(pcm, key=b"another key") == []


def test_repeated_sound_scores_as_chance_does() -> None:
    """The mark of another key repeats with the period, so each sign counts once for all periods."""
    cells = cell_scores(cell_energies(resample(SIGNAL, RATE, DETECT_RATE)))[: PERIOD_FRAMES * HOPS_PER_FRAME]
    repeated = np.tile(cells, (6, 1))
    assert max(score_cells(repeated, CellPattern.from_key(b"%d" % number)).score for number in range(20)) < 5.2


def test_span_is_where_the_mark_is() -> None:
    """Half of a window is the precision."""
    unmarked = speech_like(14 * RATE, RATE, 4)
    [span] = find(np.concatenate([unmarked, marked(), unmarked]))
    assert 14 - WINDOW_S < span.start_s <= 14
    assert 22 <= span.end_s < 22 + WINDOW_S
    assert span.payload == PAYLOAD


def test_two_marks_are_two_spans() -> None:
    other = Watermark(KEY, 7).create_embedder(RATE).push(SIGNAL)
    spans = find(np.concatenate([marked(), SIGNAL, SIGNAL, other]))
    assert [span.payload for span in spans] == [PAYLOAD, 7]
    assert common_payload(spans) in (PAYLOAD, 7)
    assert common_payload([]) is None


@given(st.integers(0, 2**PAYLOAD_BITS - 1), st.integers(0, 2**32 - 1))
def test_payload_is_read_from_noisy_bits(payload: int, seed: int) -> None:
    bits = encode(payload)
    assert decode(bits + np.random.default_rng(seed).normal(0, 0.3, bits.size)) == payload
    assert decode(-bits) is None


def test_list_reads_what_the_likeliest_word_does_not_hold() -> None:
    draw = np.random.default_rng(1)
    received = [encode(PAYLOAD) + draw.normal(0, 1.1, NUM_CODE_BITS) for _ in range(30)]
    alone, listed = ([decode(bits, num_words) for bits in received] for num_words in (1, 32))
    assert {*alone, *listed} == {PAYLOAD, None}
    assert all(payload == PAYLOAD for payload, first in zip(listed, alone, strict=True) if first is not None)
    assert listed.count(PAYLOAD) > 1.5 * alone.count(PAYLOAD) > 10


@pytest.mark.parametrize("payload", [-1, 2**PAYLOAD_BITS])
def test_payload_of_more_bits_is_refused(payload: int) -> None:
    with pytest.raises(ValueError, match=f"is {payload}"):
        Watermark(KEY, payload).create_embedder(RATE)


def test_pattern_follows_from_the_key_alone() -> None:
    pattern = CellPattern.from_key(KEY)
    assert np.array_equal(pattern.signs, CellPattern.from_key(KEY).signs)
    shared = np.mean(pattern.signs == CellPattern.from_key(b"another key").signs)
    assert shared == pytest.approx(0.5, abs=0.05)
    # Marks of earlier versions are found by later ones.
    assert pattern.signs[:2, :4].tolist() == [[-1, -1, -1, 1], [1, -1, -1, 1]]
    assert pattern.bit_indices[0, :6].tolist() == [16, 51, 16, -1, 91, 43]
