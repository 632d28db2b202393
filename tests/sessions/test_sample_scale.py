"""Positions: the client's milliseconds, the format's samples and the engine's samples agree."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from sessions.config import AudioFormat, Encoding, SpeechSettings
from sessions.sample_scale import MAX_PLAYED_MS, SampleScale

ENGINE_RATE = 24_000
FORMATS = st.sampled_from(
    [
        AudioFormat(encoding=Encoding.OPUS),
        *(AudioFormat(encoding=Encoding.PCM_S16LE, sample_rate=rate) for rate in (8_000, 16_000, 24_000)),
    ]
)


@given(FORMATS, st.floats(0.5, 2.0), st.integers(0, 10**8))
def test_an_engine_position_comes_back(audio: AudioFormat, speed: float, engine_sample: int) -> None:
    scale = SampleScale(SpeechSettings(format=audio, speed=speed), ENGINE_RATE)
    sample, time_ms = scale.from_engine(engine_sample)
    coarseness = 1 + speed * ENGINE_RATE / audio.sample_rate
    assert abs(scale.to_engine(sample) - engine_sample) <= coarseness
    assert abs(scale.from_ms(time_ms) - sample) <= 1


@given(FORMATS, st.floats(allow_nan=False), st.integers(0, 10**8))
def test_a_listener_has_played_no_more_than_it_received(audio: AudioFormat, played_ms: float, received: int) -> None:
    scale = SampleScale(SpeechSettings(format=audio), ENGINE_RATE)
    assert 0 <= scale.received_or_played(received, played_ms) <= received
    assert scale.received_or_played(received, None) == received
    assert scale.pre_skip_samples <= scale.from_ms(played_ms) <= scale.from_ms(MAX_PLAYED_MS)
    assert scale.from_ms(-math.inf) == scale.pre_skip_samples
    assert scale.to_engine(scale.pre_skip_samples) == 0
