"""How loud our own voice may be on the caller's side of a line right now. Pure: positions and levels are passed in."""

from __future__ import annotations

import math
from collections import deque

from sessions.hearing.levels import SILENCE_DB, encoded_level_db

BEHIND_MS = 600
"""Networks bring an echo back after at most so long."""
AHEAD_MS = 200
"""What is played may be so far ahead of where our clock believes it to be."""
MAX_FRAMES = 1_024
"""More than any line is sent ahead; of a line on which nobody listens, the oldest are forgotten."""


class OwnVoice:
    def __init__(self, encoding: str, sample_rate: int) -> None:
        self._encoding = encoding
        self._behind, self._ahead = (duration * sample_rate // 1000 for duration in (BEHIND_MS, AHEAD_MS))
        self._frames: deque[tuple[int, float]] = deque(maxlen=MAX_FRAMES)
        """Where each ends, and how loud it is."""

    def sent(self, end: int, frame: bytes) -> None:
        self._frames.append((end, encoded_level_db(self._encoding, frame)))

    def cut(self, position: int) -> None:
        """What lies behind this position is not played."""
        while self._frames and self._frames[-1][0] > position:
            self._frames.pop()

    def level_db(self, played: int) -> float:
        while self._frames and self._frames[0][0] < played - self._behind:
            self._frames.popleft()
        near = (level for end, level in self._frames if end <= played + self._ahead)
        return max(near, default=SILENCE_DB)


MARGIN_DB = 1.5
"""A window of an echo may be louder than any of the frames that we sent: it lies across two of them."""
LEARNED_MARGIN_DB = 6.0
"""What comes back may be so much louder than it has been."""
LEAST_OWN_DB = -40.0
"""Quieter speech of ours teaches nothing."""
NUM_UNDECIDED = 20
"""Windows, 320 ms: voices are noticed sooner than that."""
NUM_WINDOWS = 80
"""So many have to be heard while we speak, 1.3 s, before anything is believed of them."""


class EchoLoss:
    """How much quieter than we sent it our own voice comes back: by ``least_db``, or by more if a line has shown it."""

    def __init__(self, least_db: float) -> None:
        self._least_db = least_db
        self._restart()

    def _restart(self) -> None:
        self._shown_db = math.inf
        """So much quieter than us was all that we heard while we spoke."""
        self._num_windows = 0
        self._undecided: deque[float] = deque()
        """Of the last windows; a voice may be beginning in them."""

    @property
    def db(self) -> float:
        shown_db = self._shown_db - LEARNED_MARGIN_DB if self._num_windows >= NUM_WINDOWS else 0.0
        return max(self._least_db - MARGIN_DB, shown_db)

    def may_be(self, level_db: float, own_db: float) -> bool:
        """Whether what is so loud may be nothing but an echo."""
        return level_db < own_db - self.db

    def learn(self, level_db: float, own_db: float) -> None:
        """What was heard, while we were as loud as ``own_db``, is nobody so far."""
        if own_db > LEAST_OWN_DB:
            self._undecided.append(own_db - level_db)
        if len(self._undecided) > NUM_UNDECIDED:
            self._num_windows += 1
            self._shown_db = min(self._shown_db, self._undecided.popleft())

    def was_somebody(self) -> None:
        """What was heard last was the beginning of a voice; or the line brings back more than before, and has to be
        learnt anew."""
        self._restart()
