from __future__ import annotations

import pytest

from realtime.protocol.dialects.elevenlabs import ElevenLabsMultiStream
from realtime.protocol.dialects.elevenlabs_common import wire_format
from tests.realtime.dialects.dialect_harness import DialectHarness, handshake

VOICE = {"voice_id": "bIHbv24MWmeRgasZH58o"}


def multi(**query: str) -> DialectHarness:
    return DialectHarness(ElevenLabsMultiStream(handshake(VOICE, **query)))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("mp3_22050_32", ("mp3", 22_050, 32_000)),
        ("mp3_44100_128", ("mp3", 44_100, 128_000)),
        ("pcm_24000", ("pcm_s16le", 24_000, None)),
        ("ulaw_8000", ("mulaw", 8_000, None)),
        ("alaw_8000", ("alaw", 8_000, None)),
        ("opus_48000_64", ("ogg_opus", 48_000, 64_000)),
        ("wav_16000", ("wav", 16_000, None)),
    ],
)
def test_output_formats(name: str, told: tuple[object, ...]) -> None:
    found = wire_format(name)
    assert (found.encoding, found.sample_rate, found.bitrate) == told


def test_context_timeout_is_clamped() -> None:
    assert multi(inactivity_timeout="180").dialect.context_timeout_s == 180
    assert multi(inactivity_timeout="999").dialect.context_timeout_s == 180
    assert multi().dialect.context_timeout_s == 20
