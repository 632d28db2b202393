"""Containers state that speech is synthetic, where other programs read it."""

from __future__ import annotations

import io

import av
import numpy as np
import pytest
import soundfile

from sessions.audio.formats.registry import finalize_file, stream_encoder
from sessions.audio.provenance import COMMENT, SOURCE_TYPE_URL
from sessions.audio.wav import HEADER_BYTES
from sessions.config import AudioFormat, Encoding
from tests.sessions.audio.signals import tone

RATE = 24_000
SPEECH = tone(0.5, RATE)


def file_of(encoding: Encoding) -> bytes:
    audio = AudioFormat(encoding=encoding, sample_rate=RATE, bitrate=64_000)
    encoder = stream_encoder(audio)
    return finalize_file(encoder.push(SPEECH) + encoder.finish(), audio, SPEECH.size)


@pytest.mark.parametrize("encoding", [Encoding.WAV, Encoding.FLAC, Encoding.MP3, Encoding.OGG_OPUS])
def test_other_reader_finds_the_statement(encoding: Encoding) -> None:
    with av.open(io.BytesIO(file_of(encoding))) as container:
        found = container.metadata | container.streams.audio[0].metadata
    texts = " ".join(found.values())
    assert COMMENT in texts
    assert SOURCE_TYPE_URL in texts


@pytest.mark.parametrize("encoding", [Encoding.WAV, Encoding.FLAC])
def test_samples_of_a_file_are_what_was_pushed(encoding: Encoding) -> None:
    read, _ = soundfile.read(io.BytesIO(file_of(encoding)), dtype="float32")
    assert read == pytest.approx(SPEECH, abs=1 / 32_768)


def test_wav_samples_begin_after_44_bytes_and_lengths_add_up() -> None:
    data = file_of(Encoding.WAV)
    assert int.from_bytes(data[4:8], "little") == len(data) - 8
    assert int.from_bytes(data[40:44], "little") == 2 * SPEECH.size
    samples = np.frombuffer(data[HEADER_BYTES : HEADER_BYTES + 2 * SPEECH.size], "<i2")
    assert np.abs(samples / 32_768 - SPEECH).max() < 1e-4


def test_mp3_tag_comes_with_the_first_sound() -> None:
    encoder = stream_encoder(AudioFormat(encoding=Encoding.MP3, sample_rate=RATE, bitrate=64_000))
    assert encoder.push(SPEECH[:100]) == b""
    assert encoder.push(SPEECH[100:]).startswith(b"ID3\x04\x00")
