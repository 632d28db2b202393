"""Estimate the level of returned playout on a call. Pure: positions and levels are passed in."""

from __future__ import annotations

from collections import deque

from sessions.vad.energy import SILENCE_DB, encoded_level_db

# Maximum delay of an echo.
ECHO_TAIL_MS = 600
# Maximum error of the playout position.
ECHO_LOOKAHEAD_MS = 200
# More than the lead of any call; the oldest are dropped.
MAX_FRAMES = 1_024


class PlayoutLevel:
    """Track the level of sent audio by playout position."""

    def __init__(self, encoding: str, sample_rate: int) -> None:
        self._encoding = encoding
        self._behind, self._ahead = (duration * sample_rate // 1000 for duration in (ECHO_TAIL_MS, ECHO_LOOKAHEAD_MS))
        # End position and level of each frame.
        self._frames: deque[tuple[int, float]] = deque(maxlen=MAX_FRAMES)

    @property
    def has_audio(self) -> bool:
        return bool(self._frames)

    def on_sent(self, end: int, frame: bytes) -> None:
        self._frames.append((end, encoded_level_db(self._encoding, frame)))

    def truncate(self, position: int) -> None:
        """Drop playout behind this position."""
        while self._frames and self._frames[-1][0] > position:
            self._frames.pop()

    def level_db(self, played: int) -> float:
        while self._frames and self._frames[0][0] < played - self._behind:
            self._frames.popleft()
        near = (level for end, level in self._frames if end <= played + self._ahead)
        return max(near, default=SILENCE_DB)


# A window of an echo may be louder than any sent frame, because it spans two of them.
MARGIN_DB = 1.5
# The echo may be this much louder than before.
LEARNED_MARGIN_DB = 4.0
# Playout below this level does not change the estimate.
MIN_PLAYOUT_DB = -40.0
# 320 ms of windows: speech is detected sooner.
NUM_UNCONFIRMED_WINDOWS = 20
# 1.3 s of windows during playout, before the estimate is used.
NUM_WINDOWS = 80


class EchoThreshold:
    """Estimate the maximum echo: ``min_loss_db`` below playout, or the loudest window of the call."""

    def __init__(self, min_loss_db: float) -> None:
        self._min_loss_db = min_loss_db
        self._restart()

    def _restart(self) -> None:
        self._num_windows = 0
        # The loudest window during playout, and the loudest playout.
        self._max_level_db = self._max_own_db = SILENCE_DB
        # The last windows with the playout level; speech may begin in them.
        self._undecided: deque[tuple[float, float]] = deque()

    def threshold_db(self, own_db: float) -> float:
        """Return the level below which a window may be an echo of playout at ``own_db``."""
        default_db = own_db - self._min_loss_db + MARGIN_DB
        if self._num_windows < NUM_WINDOWS:
            return default_db
        return min(default_db, self._max_level_db + LEARNED_MARGIN_DB + max(own_db - self._max_own_db, 0.0))

    def update(self, level_db: float, own_db: float) -> None:
        """Record a window without speech during playout at ``own_db``."""
        if own_db > MIN_PLAYOUT_DB:
            self._undecided.append((level_db, own_db))
        if len(self._undecided) > NUM_UNCONFIRMED_WINDOWS:
            level_db, own_db = self._undecided.popleft()
            self._num_windows += 1
            self._max_level_db, self._max_own_db = max(self._max_level_db, level_db), max(self._max_own_db, own_db)

    def on_speech_detected(self) -> None:
        """Restart the estimate: the last windows were speech, or the line returns more echo than before."""
        self._restart()
