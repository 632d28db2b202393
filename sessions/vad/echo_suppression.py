"""How loud our own voice may be on the caller's side of a line right now. Pure: positions and levels are passed in."""

from __future__ import annotations

from collections import deque

from sessions.vad.levels import SILENCE_DB, encoded_level_db

# Networks bring an echo back after at most so long.
ECHO_TAIL_MS = 600
# What is played may be so far ahead of where our clock believes it to be.
ECHO_LOOKAHEAD_MS = 200
# More than any line is sent ahead; of a line on which nobody listens, the oldest are forgotten.
MAX_FRAMES = 1_024


class PlayoutLevel:
    def __init__(self, encoding: str, sample_rate: int) -> None:
        self._encoding = encoding
        self._behind, self._ahead = (duration * sample_rate // 1000 for duration in (ECHO_TAIL_MS, ECHO_LOOKAHEAD_MS))
        # Where each ends, and how loud it is.
        self._frames: deque[tuple[int, float]] = deque(maxlen=MAX_FRAMES)

    @property
    def has_audio(self) -> bool:
        return bool(self._frames)

    def on_sent(self, end: int, frame: bytes) -> None:
        self._frames.append((end, encoded_level_db(self._encoding, frame)))

    def truncate(self, position: int) -> None:
        """What lies behind this position is not played."""
        while self._frames and self._frames[-1][0] > position:
            self._frames.pop()

    def level_db(self, played: int) -> float:
        while self._frames and self._frames[0][0] < played - self._behind:
            self._frames.popleft()
        near = (level for end, level in self._frames if end <= played + self._ahead)
        return max(near, default=SILENCE_DB)


# A window of an echo may be louder than any of the frames that we sent: it lies across two of them.
MARGIN_DB = 1.5
# What comes back may be so much louder than it has been.
LEARNED_MARGIN_DB = 4.0
# Quieter speech of ours teaches nothing.
MIN_PLAYOUT_DB = -40.0
# Windows, 320 ms: voices are noticed sooner than that.
NUM_UNCONFIRMED_WINDOWS = 20
# So many have to be heard while we speak, 1.3 s, before anything is believed of them.
NUM_WINDOWS = 80


class EchoThreshold:
    """How loud an echo of our own voice may be: ``least_loss_db`` below it, or no louder than a line has shown."""

    def __init__(self, min_loss_db: float) -> None:
        self._least_loss_db = min_loss_db
        self._restart()

    def _restart(self) -> None:
        self._num_windows = 0
        # The loudest that was heard while we spoke, and how loud we were at most.
        self._heard_db = self._own_db = SILENCE_DB
        # The last windows and our own voice; a voice may be beginning in them.
        self._undecided: deque[tuple[float, float]] = deque()

    def threshold_db(self, own_db: float) -> float:
        """While we are as loud as ``own_db``, what is quieter may be nothing but an echo."""
        told_db = own_db - self._least_loss_db + MARGIN_DB
        if self._num_windows < NUM_WINDOWS:
            return told_db
        return min(told_db, self._heard_db + LEARNED_MARGIN_DB + max(own_db - self._own_db, 0.0))

    def update(self, level_db: float, own_db: float) -> None:
        """What was heard, while we were as loud as ``own_db``, is nobody so far."""
        if own_db > MIN_PLAYOUT_DB:
            self._undecided.append((level_db, own_db))
        if len(self._undecided) > NUM_UNCONFIRMED_WINDOWS:
            level_db, own_db = self._undecided.popleft()
            self._num_windows += 1
            self._heard_db, self._own_db = max(self._heard_db, level_db), max(self._own_db, own_db)

    def on_speech_detected(self) -> None:
        """What was heard last was the beginning of a voice; or the line brings back more than before, and has to be
        learnt anew."""
        self._restart()
