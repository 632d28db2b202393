"""How loud our own voice may be on the caller's side of a line right now. Pure: positions are passed in."""

from __future__ import annotations

from collections import deque

from sessions.hearing.caller import SILENCE_DB, encoded_level_db

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
