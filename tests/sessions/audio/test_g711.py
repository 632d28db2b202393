"""The tables against the segment algorithm written out sample by sample."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from sessions.audio.pcm import s16_to_float


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


ALL_SAMPLES = np.arange(65_536, dtype=np.uint16).view(np.int16)


@pytest.mark.parametrize(("table", "slow"), [(mulaw_encode_table, slow_mulaw), (alaw_encode_table, slow_alaw)])
def test_all_65536_samples_encode_as_the_algorithm_says(table, slow) -> None:
    assert table().tolist() == [slow(int(sample)) for sample in ALL_SAMPLES]


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
    samples = ALL_SAMPLES.astype(int)
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
def test_bytes_do_not_depend_on_the_cut(codes: bytes, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(codes)))
    pcm = mulaw_to_pcm(codes)
    assert pcm_to_mulaw(pcm[:cut]) + pcm_to_mulaw(pcm[cut:]) == pcm_to_mulaw(pcm)
    assert np.array_equal(pcm, s16_to_float(mulaw_decode_table()[list(codes)]) if codes else pcm)
