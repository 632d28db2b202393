"""Convert positions in a response between the client's clock, its audio format and the engine's samples."""

from __future__ import annotations

from sessions.audio.formats.registry import opus_settings
from sessions.config import Encoding, SpeechSettings

# A client's count is cut to this: thirty years, and small enough to be turned into samples.
MAX_PLAYED_MS = 1e12
# A new Opus decoder is then within -59 dB of one that was kept; after the 80 ms of RFC 7845, within -4 dB for speech.
OPUS_PREROLL_MS = 240


class SampleScale:
    """Positions in samples count at the format's rate, decoder delay included, unless named otherwise."""

    def __init__(self, settings: SpeechSettings, engine_rate: int) -> None:
        audio = settings.format
        is_opus = audio.encoding is Encoding.OPUS
        self._rate = audio.sample_rate
        self._engine_rate = engine_rate
        self._speed = settings.speed
        # Decoded samples before the speech.
        self.pre_skip_samples = opus_settings(audio).pre_skip_samples if is_opus else 0
        # Repeated for a decoder that begins within the response.
        self.preroll_samples = OPUS_PREROLL_MS * audio.sample_rate // 1000 if is_opus else 0

    def from_ms(self, played_ms: float) -> int:
        """Return the position of ``played_ms`` milliseconds of speech; negative counts as 0. NaN is not allowed."""
        return int(min(max(played_ms, 0.0), MAX_PLAYED_MS) * self._rate / 1000) + self.pre_skip_samples

    def received_or_played(self, received_samples: int, played_ms: float | None) -> int:
        """Return the position of the listener, at most what it has received."""
        return received_samples if played_ms is None else min(self.from_ms(played_ms), received_samples)

    def to_engine(self, samples: int) -> int:
        """Return the engine's position, which counts no decoder delay."""
        return int(max(samples - self.pre_skip_samples, 0) * self._speed * self._engine_rate / self._rate)

    def from_engine(self, engine_sample: int) -> tuple[int, float]:
        """Return the position of an engine's sample, and its milliseconds of speech."""
        time_s = engine_sample / (self._engine_rate * self._speed)
        return self.pre_skip_samples + round(time_s * self._rate), 1000 * time_s
