"""Samples: PCM, G.711 and WAV, what survives and what is clipped."""

from __future__ import annotations

import io
import wave

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sessions.audio.g711 import (
    alaw_decode_table,
    alaw_encode_table,
    alaw_to_pcm,
    mulaw_decode_table,
    mulaw_encode_table,
    mulaw_to_pcm,
    pcm_to_alaw,
    pcm_to_mulaw,
)
from sessions.audio.pcm import (
    float_to_s16,
    pcm_to_s16le,
    s16_to_float,
    s16le_to_pcm,
)
from sessions.audio.wav import HEADER_BYTES, MAX_SAMPLES, wav_file, wav_header
from tests.sessions.audio.signals import noise

ANY_PCM = arrays(np.float32, st.integers(0, 200), elements=st.floats(-1, 1, width=32))
ALL_S16 = np.arange(-32_768, 32_768).astype(np.int16)


def test_every_s16_sample_survives_the_way_through_float() -> None:
    assert np.array_equal(float_to_s16(s16_to_float(ALL_S16)), ALL_S16)
    assert s16_to_float(ALL_S16).dtype == np.float32


@given(ANY_PCM)
def test_s16_is_within_half_a_step(pcm: np.ndarray) -> None:
    error = s16le_to_pcm(pcm_to_s16le(pcm)) - np.minimum(pcm, 32_767 / 32_768)
    assert np.all(np.abs(error) <= 0.5 / 32_768)


@given(ANY_PCM, st.data())
def test_bytes_do_not_depend_on_the_cut(pcm: np.ndarray, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(pcm)))
    assert pcm_to_s16le(pcm[:cut]) + pcm_to_s16le(pcm[cut:]) == pcm_to_s16le(pcm)


def test_out_of_range_is_held_and_no_number_is_silence() -> None:
    pcm = np.array([1.0, 7.0, -1.0, -7.0, np.inf, -np.inf, np.nan], np.float32)
    assert float_to_s16(pcm).tolist() == [32767, 32767, -32768, -32768, 32767, -32768, 0]


def test_s16_is_little_endian() -> None:
    assert pcm_to_s16le(np.array([1 / 32_768, -1.0], np.float32)) == b"\x01\x00\x00\x80"


def test_half_a_sample_is_refused() -> None:
    with pytest.raises(ValueError, match="got 3 bytes"):
        s16le_to_pcm(b"abc")


def slow_mulaw(sample: int) -> int:
    magnitude = min(((~sample if sample < 0 else sample) >> 2) + 33, 0x1FFF)
    segment = 0
    while magnitude >> (segment + 6):
        segment += 1
    code = 0x70 - (segment << 4) + 15 - (magnitude >> (segment + 1) & 15)
    return code if sample < 0 else code + 0x80


def slow_alaw(sample: int) -> int:
    magnitude = (~sample if sample < 0 else sample) >> 4
    segment = 0
    while magnitude >= 32:
        magnitude >>= 1
        segment += 1
    code = magnitude + (segment << 4)
    return (code if sample < 0 else code + 0x80) ^ 0x55


EVERY_SAMPLE = np.arange(65_536, dtype=np.uint16).view(np.int16)


@pytest.mark.parametrize(("table", "slow"), [(mulaw_encode_table, slow_mulaw), (alaw_encode_table, slow_alaw)])
def test_all_65536_samples_encode_as_specified(table, slow) -> None:
    assert table().tolist() == [slow(int(sample)) for sample in EVERY_SAMPLE]


@pytest.mark.parametrize(
    ("decode_table", "encode_table", "minus_zero"),
    [(mulaw_decode_table, mulaw_encode_table, 0x7F), (alaw_decode_table, alaw_encode_table, None)],
)
def test_all_256_codes_survive_decode_and_encode(decode_table, encode_table, minus_zero) -> None:
    again = encode_table()[decode_table().view(np.uint16)]
    assert [code for code in range(256) if again[code] != code] == ([] if minus_zero is None else [minus_zero])


@pytest.mark.parametrize(
    ("encode_table", "decode_table"),
    [(mulaw_encode_table, mulaw_decode_table), (alaw_encode_table, alaw_decode_table)],
)
def test_error_grows_with_the_sample(encode_table, decode_table) -> None:
    samples = EVERY_SAMPLE.astype(int)
    error = np.abs(decode_table()[encode_table()].astype(int) - samples)
    assert np.all(error <= (np.abs(samples) + 132) / 32 + 4)


def test_values_of_the_recommendation() -> None:
    assert mulaw_decode_table()[[0x80, 0x8F, 0xFE, 0xFF, 0x00]].tolist() == [32124, 16764, 8, 0, -32124]
    assert alaw_decode_table()[[0xAA, 0xD5, 0x55, 0x2A]].tolist() == [32256, 8, -8, -32256]


@pytest.mark.parametrize(("encode", "decode"), [(pcm_to_mulaw, mulaw_to_pcm), (pcm_to_alaw, alaw_to_pcm)])
def test_signal_stands_36_db_above_the_quantising_noise(encode, decode) -> None:
    pcm = (0.3 * np.sin(np.arange(8000) * 0.3)).astype(np.float32)
    noise = decode(encode(pcm)) - pcm
    assert 10 * np.log10(np.sum(pcm**2) / np.sum(noise**2)) > 36


def test_silence_has_the_idle_code() -> None:
    silence = np.zeros(4, np.float32)
    assert pcm_to_mulaw(silence) == b"\xff" * 4
    assert pcm_to_alaw(silence) == b"\xd5" * 4


@given(st.binary(max_size=100), st.data())
def test_g711_bytes_do_not_depend_on_the_cut(codes: bytes, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(codes)))
    pcm = mulaw_to_pcm(codes)
    assert pcm_to_mulaw(pcm[:cut]) + pcm_to_mulaw(pcm[cut:]) == pcm_to_mulaw(pcm)
    assert np.array_equal(pcm, s16_to_float(mulaw_decode_table()[list(codes)]) if codes else pcm)


@given(st.integers(0, 300), st.sampled_from([8_000, 24_000, 48_000]))
def test_a_finished_file_reads_back(num_samples: int, sample_rate: int) -> None:
    pcm = noise(num_samples)
    with wave.open(io.BytesIO(wav_file(pcm, sample_rate))) as reader:
        assert reader.getparams()[:4] == (1, 2, sample_rate, num_samples)
        assert reader.readframes(num_samples) == pcm_to_s16le(pcm)


def test_a_stream_of_unknown_length_reads_to_its_end() -> None:
    pcm = noise(5_000)
    stream = wav_header(24_000) + pcm_to_s16le(pcm)
    read, rate = soundfile.read(io.BytesIO(stream), dtype="int16")
    assert rate == 24_000
    assert np.array_equal(read, float_to_s16(pcm))


def test_headers_have_the_length_of_the_file() -> None:
    assert len(wav_header(24_000)) == HEADER_BYTES
    assert wav_header(24_000, 7)[4:8] == (HEADER_BYTES + 14 - 8).to_bytes(4, "little")
    assert wav_header(24_000)[4:8] == b"\xff\xff\xff\xff"


@pytest.mark.parametrize("num_samples", [-1, MAX_SAMPLES + 1])
def test_ambiguous_lengths_are_refused(num_samples: int) -> None:
    with pytest.raises(ValueError, match=f"between 0 and {MAX_SAMPLES}, got {num_samples}"):
        wav_header(24_000, num_samples)
