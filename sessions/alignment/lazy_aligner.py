"""Alignment for those who ask: text and speech are kept in their order, and looked through at the first question.

Most responses are spoken to their end, and their word times are never queried: these cost a list.
"""

from __future__ import annotations

import threading
import weakref
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from sessions.alignment.aligner import Aligner, Pcm

AlignerOp = Callable[[Aligner], None]

# What is looked through at once: half a millisecond's work.
CHUNK_SAMPLES = 3_840


@dataclass(slots=True, eq=False)
class _PendingShare:
    """Of one aligner in a backlog."""

    aligner: weakref.ref[LazyAligner]
    num_bytes: int = 0


class AlignmentBacklog:
    """The speech that aligners keep and have not looked through. Beyond ``max_bytes`` as much of the oldest is looked
    through as comes in; with 0 all of it is, as it comes."""

    def __init__(self, max_bytes: int = 0) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        # The oldest first.
        self._shares: dict[_PendingShare, None] = {}
        self._lock = threading.Lock()

    def add(self, share: _PendingShare, num_bytes: int) -> None:
        with self._lock:
            self._shares.setdefault(share)
            share.num_bytes += num_bytes
            self.num_bytes += num_bytes

    def remove(self, share: _PendingShare, num_bytes: int) -> None:
        with self._lock:
            share.num_bytes -= num_bytes
            self.num_bytes -= num_bytes
            if not share.num_bytes:
                self._shares.pop(share, None)

    def trim(self) -> None:
        while self.num_bytes > self.max_bytes and self._process_oldest():
            pass

    def _process_oldest(self) -> bool:
        """One piece; ``False`` where there is none, or another thread is at it."""
        with self._lock:
            share = next(iter(self._shares), None)
        if share is None:
            return False
        aligner = share.aligner()
        if aligner is None:  # the aligner was garbage-collected
            self.remove(share, share.num_bytes)
            return True
        return aligner.process_next()


class LazyAligner:
    """Wrap an aligner and defer its input until ``bounds`` or ``estimate`` are called."""

    def __init__(self, make: Callable[[], Aligner], backlog: AlignmentBacklog) -> None:
        self._make = make
        self._backlog = backlog
        self._share = _PendingShare(weakref.ref(self))
        self._aligner: Aligner | None = None
        # What the aligner has still to be told, and how many bytes of speech that is.
        self._kept: deque[tuple[AlignerOp, int]] = deque()
        self._over = False
        # Once it is over and looked through: an aligner is large, and ended responses are remembered.
        self._found: array[int] | None = None
        # An aligner is in one thread at a time.
        self._lock = threading.RLock()

    @property
    def num_pending_bytes(self) -> int:
        """Of speech that the next question waits for."""
        return self._share.num_bytes

    @property
    def bounds(self) -> list[int]:
        with self._lock:
            self.process_all()
            return self._get_aligner().bounds if self._found is None else list(self._found)

    def estimate(self) -> list[int]:
        with self._lock:
            self.process_all()
            return self._get_aligner().estimate() if self._found is None else list(self._found)

    def add_text(self, text: str) -> None:
        self._enqueue(lambda aligner: aligner.add_text(text))

    def end_text(self) -> None:
        self._enqueue(lambda aligner: aligner.end_text())

    def push(self, pcm: Pcm) -> None:
        for start in range(0, pcm.size, CHUNK_SAMPLES):
            self._enqueue_pcm(pcm[start : start + CHUNK_SAMPLES])

    def finish(self) -> None:
        self._enqueue(lambda aligner: aligner.finish())
        self.end_input()

    def end_input(self) -> None:
        """Nothing follows: what it would say now, it says from now on."""
        with self._lock:
            self._over = True
            if not self._kept:
                self._release_aligner()

    def process_all(self) -> None:
        """Look through all that is kept; from any thread, where another waits for one piece at most."""
        while self._kept:
            with self._lock:
                self._run_next()

    def process_next(self) -> bool:
        """Look through the oldest piece that is kept, unless another thread is at it."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._run_next()
            return True
        finally:
            self._lock.release()

    def discard(self) -> None:
        """Drop the queued audio: no further query comes."""
        self._over = True
        self._kept.clear()
        with self._lock:
            self._backlog.remove(self._share, self._share.num_bytes)
            self._found, self._aligner = self._found or array("l"), None

    def _enqueue_pcm(self, pcm: Pcm) -> None:
        self._enqueue(lambda aligner: aligner.push(pcm), pcm.nbytes)

    def _enqueue(self, deed: AlignerOp, num_bytes: int = 0) -> None:
        if self._over:
            return
        if num_bytes:  # counted first: another thread may be through with it at once
            self._backlog.add(self._share, num_bytes)
        self._kept.append((deed, num_bytes))
        if num_bytes:
            self._backlog.trim()

    def _run_next(self) -> None:
        try:
            deed, num_bytes = self._kept.popleft()
        except IndexError:  # forgotten meanwhile
            return
        try:
            deed(self._get_aligner())
        finally:
            self._backlog.remove(self._share, num_bytes)
        if self._over and not self._kept:
            self._release_aligner()

    def _get_aligner(self) -> Aligner:
        if self._aligner is None:
            self._aligner = self._make()
        return self._aligner

    def _release_aligner(self) -> None:
        if self._found is None:
            self._found = array("l", self._get_aligner().estimate())
            self._aligner = None
