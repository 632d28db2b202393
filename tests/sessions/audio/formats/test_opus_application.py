"""Opus tuned for audio is taken where it sounds as good: from 64,000 bits a second on, and without copies."""

from __future__ import annotations

import numpy as np
import pytest

from sessions.audio.formats.registry import opus_settings
from sessions.audio.opus import OpusApplication, OpusEncoder, decode_all
from sessions.config import AudioFormat
from tests.sessions.audio.signals import noise


@pytest.mark.parametrize(
    ("audio", "application"),
    [
        (AudioFormat(), OpusApplication.VOIP),
        (AudioFormat(bitrate=96_000), OpusApplication.VOIP),
        (AudioFormat(application="audio"), OpusApplication.VOIP),
        (AudioFormat(application="audio", bitrate=64_000), OpusApplication.AUDIO),
        (AudioFormat(application="audio", bitrate=64_000, fec=True), OpusApplication.VOIP),
    ],
)
def test_which_application_is_taken(audio: AudioFormat, application: OpusApplication) -> None:
    assert opus_settings(audio).application is application


def test_its_packets_hold_every_sample_in_its_place() -> None:
    settings = opus_settings(AudioFormat(application="audio", bitrate=64_000))
    pcm = np.sin(2 * np.pi * 440 * np.arange(24_000) / 24_000).astype(np.float32) * 0.3 + noise(24_000) * 0.001
    encoder = OpusEncoder(settings)
    heard = decode_all(encoder.push(pcm) + encoder.flush(), settings)
    assert heard.size == pcm.size
    assert np.abs(heard - pcm)[2_400:].mean() < 0.02
