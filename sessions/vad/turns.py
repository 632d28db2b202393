"""Cut a speaker's audio into turns: by the voice activity detector that calls use, or by the speaker's own commits."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from engine.api import CodedError, InvalidRequest
from sessions.clock import TICK_S, WakeEvent, now_s
from sessions.errors import LimitExceeded
from sessions.vad.barge_in import BargeInDetector, BargeInSettings
from sessions.vad.energy import SILENCE_DB
from sessions.vad.scheduler import VadScheduler
from sessions.vad.silero import load_model

# Audio that is processed at once, so that a long message does not delay others.
SLICE_MS = 32
# Speech that has passed when its onset is detected.
ONSET_MS = 64
MIN_TURN_MS = 100
# Level of the playout whose echo may be in the speaker's audio, relative to full scale.
PlayoutLevelDb = Callable[[], float]


def no_playout() -> float:
    """The level where no echo returns, because the client cancels it."""
    return SILENCE_DB


@dataclass(frozen=True, slots=True)
class TurnDetection:
    """How the end of a turn is found."""

    # Minimum speech probability; ``None`` is that of calls.
    threshold: float | None = None
    # Audio before the detected speech that belongs to the turn.
    prefix_ms: int = 300
    # Silence that ends the turn.
    silence_ms: int = 500


@dataclass(frozen=True, slots=True)
class TurnFormat:
    """Audio format of the speaker; mono."""

    # One of ``sessions.vad.energy.DECODERS``.
    encoding: str = "pcm_s16le"
    sample_rate: int = 24_000

    @property
    def bytes_per_s(self) -> int:
        return self.sample_rate * (2 if self.encoding == "pcm_s16le" else 1)

    def num_bytes(self, duration_ms: int) -> int:
        return duration_ms * self.bytes_per_s // 2000 * 2

    def duration_ms(self, num_bytes: int) -> int:
        return 1000 * num_bytes // self.bytes_per_s


class SpokenTurn(NamedTuple):
    format: TurnFormat
    data: bytes
    # Event loop time of the last speech.
    speech_end_s: float
    # True if its end was detected, false if it was committed.
    is_detected: bool

    @property
    def duration_s(self) -> float:
        return len(self.data) / self.format.bytes_per_s


class TurnInput:
    """``append``, ``commit`` and ``clear`` never wait. ``run`` detects turns, for as long as the speaker is there."""

    def __init__(
        self,
        scheduler: VadScheduler,
        settings: BargeInSettings,
        max_turn_s: int,
        on_speech: Callable[[bool, int], None],
        on_turn: Callable[[SpokenTurn], None],
        playout_level_db: PlayoutLevelDb = no_playout,
    ) -> None:
        """``on_speech`` receives that speech began (True) or ended, and the position in milliseconds; ``on_turn`` the
        turns whose ends were detected."""
        self._scheduler, self._settings, self._max_turn_s = scheduler, settings, max_turn_s
        self._on_speech, self._on_turn, self._playout_level_db = on_speech, on_turn, playout_level_db
        self._wake = WakeEvent()
        # Not processed yet, in slices.
        self._incoming: deque[bytes] = deque()
        self._num_incoming = 0
        # Event loop time of the last sample that was appended.
        self._end_s = 0.0
        # Of the turn; before speech the last part that may belong to it.
        self._buffer = bytearray()
        self._num_processed = 0
        self._is_speaking = False
        self._format = TurnFormat()
        self._detection: TurnDetection | None = None
        self._detector: BargeInDetector | None = None

    def configure(self, format: TurnFormat, detection: TurnDetection | None) -> None:
        """Change format or detection; ``None``: turns end by ``commit`` alone. A new format drops what was not
        committed."""
        if format != self._format:
            self.clear()
            self._format = format
        self._reset_detector()
        self._is_speaking, self._detection, self._detector = False, detection, None
        if detection is None:
            self._skip_incoming()
        else:
            threshold = self._settings.threshold if detection.threshold is None else detection.threshold
            settings = replace(self._settings, threshold=threshold, min_silence_ms=detection.silence_ms)
            self._detector = BargeInDetector(format.encoding, format.sample_rate, settings)

    def append(self, data: bytes, end_s: float | None = None) -> None:
        """Append audio; ``end_s`` is the event loop time of its last sample, by default now.

        Raises ``InvalidRequest`` or ``LimitExceeded``; then nothing was appended."""
        if self._format.encoding == "pcm_s16le" and len(data) % 2:
            raise InvalidRequest(f"audio has {len(data)} bytes, which end inside a sample of 2", "audio")
        num_bytes = len(data) + self._num_incoming + (len(self._buffer) if self._detector is None else 0)
        if num_bytes > self._max_bytes:
            duration_ms = self._format.duration_ms(num_bytes)
            limit_ms = 1000 * self._max_turn_s
            raise LimitExceeded(f"audio of a turn has at most {limit_ms} ms, would have {duration_ms}", "audio")
        size = self._format.num_bytes(SLICE_MS)
        self._incoming.extend(data[start : start + size] for start in range(0, len(data), size))
        self._num_incoming += len(data)
        self._end_s = now_s() if end_s is None else end_s
        if self._detector is None:
            self._skip_incoming()
        else:
            self._wake.set()

    def commit(self) -> SpokenTurn:
        """End the turn and return it. Raises ``CodedError`` for too little audio."""
        self._skip_incoming()
        if (duration_ms := self._format.duration_ms(len(self._buffer))) < MIN_TURN_MS:
            message = f"the buffer has {duration_ms} ms of audio, at least {MIN_TURN_MS} are needed"
            raise CodedError("input_audio_buffer_commit_empty", message, "audio")
        data = bytes(self._buffer)
        self.clear()
        return SpokenTurn(self._format, data, now_s(), is_detected=False)

    def clear(self) -> None:
        """Drop the audio that was not committed."""
        self._skip_incoming()
        self._buffer.clear()
        self._is_speaking = False
        self._reset_detector()

    async def run(self) -> None:
        """Process audio as it comes; ends when cancelled."""
        if not load_model.cache_info().currsize:
            await asyncio.to_thread(load_model)  # takes about half a second, once
        try:
            while True:
                await self._wake.wait()
                while self._incoming and self._detector is not None:
                    await self._process(self._incoming[0], self._detector)
        finally:
            self._reset_detector()

    async def _process(self, data: bytes, detector: BargeInDetector) -> None:
        self._scheduler.push(detector, data, _ignore_onset, self._playout_level_db())
        while detector.pending:  # noqa: ASYNC110  its windows run with those of others, between two ticks
            await asyncio.sleep(TICK_S)
        if self._detector is not detector or not self._incoming or self._incoming[0] is not data:
            return  # it was cleared, committed or configured meanwhile
        self._num_incoming -= len(self._incoming.popleft())
        self._num_processed += len(data)
        self._buffer += data
        self._follow(detector.speaking)

    def _follow(self, is_speaking: bool) -> None:
        """Begin or end the turn as the detector says, or end it because it is as long as it may be."""
        assert self._detection is not None
        position_ms = self._format.duration_ms(self._num_processed)
        before_ms = self._detection.prefix_ms + ONSET_MS
        if not self._is_speaking:
            del self._buffer[: max(len(self._buffer) - self._format.num_bytes(before_ms), 0)]
        if is_speaking and not self._is_speaking:
            self._is_speaking = True
            self._on_speech(True, max(position_ms - before_ms, 0))
        elif self._is_speaking and (not is_speaking or len(self._buffer) >= self._max_bytes):
            self._on_speech(False, position_ms)
            self._end_detected(0.0 if is_speaking else self._detection.silence_ms / 1000)

    def _end_detected(self, silence_s: float) -> None:
        lag_s = self._num_incoming / self._format.bytes_per_s
        data = bytes(self._buffer)
        self._buffer.clear()
        self._is_speaking = False
        if not silence_s:
            self._reset_detector()  # what follows is speech of another turn
        self._on_turn(SpokenTurn(self._format, data, self._end_s - silence_s - lag_s, is_detected=True))

    @property
    def _max_bytes(self) -> int:
        return self._max_turn_s * self._format.bytes_per_s

    def _skip_incoming(self) -> None:
        """Move what was not processed to the turn."""
        self._buffer += b"".join(self._incoming)
        self._num_processed += self._num_incoming
        self._incoming.clear()
        self._num_incoming = 0

    def _reset_detector(self) -> None:
        """Reset the detector, and remove it from the scheduler."""
        if self._detector is not None:
            self._scheduler.remove(self._detector)


def _ignore_onset() -> None:
    """The detector's state is read instead, which has the end of speech as well."""
