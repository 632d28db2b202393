"""What the fake engine is told to do, and the sound it makes: a hum of the right length."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from engine.api import EngineInfo, FinishReason, Pcm, SpeechRequest, VoiceInfo

SAMPLE_RATE = 24_000
FRAME_SAMPLES = 1_920
FRAME_S = FRAME_SAMPLES / SAMPLE_RATE

FAKE_INFO = EngineInfo(
    model="fake",
    sample_rate=SAMPLE_RATE,
    frame_samples=FRAME_SAMPLES,
    voices=(VoiceInfo("ada", ("en",), "a low hum"), VoiceInfo("ben", ("en", "de"), "a higher hum")),
    languages=("auto", "en", "de"),
    max_text_tokens=2_000,
    normalize_text=False,
    takes_instruct=True,
)


@dataclass(frozen=True, slots=True)
class FakeScript:
    """How one request goes; the defaults are a healthy engine, four times faster than speech."""

    ms_per_char: float = 60.0
    # From the first final text (or the slot, if that is later) to the first chunk.
    first_chunk_s: float = 0.1
    # ``RequestParked`` comes before the first chunk too, as if text had been short.
    parks_first: bool = False
    # Seconds of work for a second of audio, after the first chunk.
    real_time_factor: float = 0.25
    chunk_frames: int = 1
    # Frame index -> extra seconds before the chunk that begins there: an underrun of the engine's making.
    stalls_s: Mapping[int, float] = field(default_factory=dict)
    # End in ``ERROR`` instead of making this frame.
    fail_at_frame: int | None = None
    # The whole engine dies instead of making this frame.
    die_at_frame: int | None = None
    # End with ``end_reason`` instead of making this frame.
    end_at_frame: int | None = None
    end_reason: FinishReason = FinishReason.STOP

    # Frames have codes drawn by chance, which can be heard; otherwise all are 0.
    draws_codes: bool = False
    # Work on frames whose codes are known, in that on others.
    replay_factor: float = 0.1

    # That it tells of at its end.
    num_skipped_tokens: int = 0

    def draw_code(self) -> int:
        return secrets.randbelow(64) if self.draws_codes else 0

    def next_cut(self, frame: int) -> int | None:
        """The next frame that must begin a chunk, because something is scripted for it."""
        marks = (self.fail_at_frame, self.die_at_frame, self.end_at_frame, *self.stalls_s)
        return min((mark for mark in marks if mark is not None and mark > frame), default=None)


def tone(request: SpeechRequest, start_sample: int, num_samples: int) -> Pcm:
    """The hum of a request: a function of sample position alone, so that any cut gives the same signal."""
    names = [voice.name for voice in FAKE_INFO.voices]
    voice_hz = 160 + 80 * (names.index(request.voice) if request.voice in names else 0)
    frequency_hz = voice_hz + 20 * (request.segment % 4)
    return fake_audio(frequency_hz)[np.arange(start_sample, start_sample + num_samples) % SAMPLE_RATE]


@lru_cache
def fake_audio(frequency_hz: int) -> Pcm:
    """A second, after which it begins anew."""
    seconds = np.arange(SAMPLE_RATE, dtype=np.float64) / SAMPLE_RATE
    return (0.3 * np.sin(2 * np.pi * frequency_hz * seconds)).astype(np.float32)
