"""WAV, read back by two other readers."""

from __future__ import annotations

import io
import wave

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from sessions.audio.pcm import float_to_s16, pcm_to_s16le
from sessions.audio.wav import HEADER_BYTES, MAX_SAMPLES, wav_file, wav_header
from tests.sessions.audio.signals import noise


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


def test_headers_tell_the_length_of_the_file() -> None:
    assert len(wav_header(24_000)) == HEADER_BYTES
    assert wav_header(24_000, 7)[4:8] == (HEADER_BYTES + 14 - 8).to_bytes(4, "little")
    assert wav_header(24_000)[4:8] == b"\xff\xff\xff\xff"


@pytest.mark.parametrize("num_samples", [-1, MAX_SAMPLES + 1])
def test_lengths_that_cannot_be_told_are_refused(num_samples: int) -> None:
    with pytest.raises(ValueError, match=f"between 0 and {MAX_SAMPLES}, got {num_samples}"):
        wav_header(24_000, num_samples)
