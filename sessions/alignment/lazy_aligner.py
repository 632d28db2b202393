"""Defer alignment until word times or heard text are queried.

Most responses are spoken to their end and never queried: these cost a list of their text and speech.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np

from sessions.alignment.aligner import Aligner, Pcm
from sessions.clock import TICK_S, next_mid_tick, now_s


class InputEnd(Enum):
    TEXT = auto()
    SPEECH = auto()


# None of them is an object that garbage collections visit: thousands of them wait.
AlignerInput = str | Pcm | InputEnd

# Speech aligned in one go: half a millisecond of work.
CHUNK_SAMPLES = 3_840
# Time of one slice; a piece that has begun is completed.
SLICE_S = 0.0005


@dataclass(slots=True, eq=False)
class _PendingShare:
    """The part of one aligner in a backlog."""

    aligner: weakref.ref[LazyAligner]
    num_bytes: int = 0


class AlignmentBacklog:
    """Speech that waits for alignment. Beyond ``max_bytes`` the oldest is aligned as more arrives; with 0 all speech is
    aligned on arrival."""

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
        """Align one piece. False if there is none, or if another thread aligns it."""
        with self._lock:
            share = next(iter(self._shares), None)
        if share is None:
            return False
        aligner = share.aligner()
        if aligner is None:  # the aligner was garbage-collected
            self.remove(share, share.num_bytes)
            return True
        return aligner.process_next()


class IdleAlignmentBacklog(AlignmentBacklog):
    """Aligns speech soon after it arrives, in slices between the ticks at which packets are sent.

    Aligned on arrival, the speech of many listeners delayed all packets by 10 ms. Belongs to one event loop."""

    def __init__(self, max_bytes: int = 0) -> None:
        super().__init__(max_bytes)
        self._timer: asyncio.TimerHandle | None = None

    def trim(self) -> None:
        super().trim()
        self._schedule(next_mid_tick(now_s()))

    def _schedule(self, moment_s: float) -> None:
        if self.num_bytes and self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(moment_s, self._process_slice)

    def _process_slice(self) -> None:
        end_s = time.perf_counter() + SLICE_S
        try:
            while self.num_bytes and self._process_oldest() and time.perf_counter() < end_s:
                pass
        finally:
            self._timer = None
            self._schedule(next_mid_tick(now_s() + TICK_S / 2))  # not in the one that is now


class LazyAligner:
    """Wrap an aligner and defer its input until ``bounds`` or ``estimate`` are called."""

    def __init__(self, make: Callable[[], Aligner], backlog: AlignmentBacklog) -> None:
        self._make = make
        self._backlog = backlog
        self._share = _PendingShare(weakref.ref(self))
        self._aligner: Aligner | None = None
        # Input that the aligner has not processed.
        self._kept: deque[AlignerInput] = deque()
        self._over = False
        # The result, once all input is processed: an aligner is large, and ended responses are retained.
        self._found: array[int] | None = None
        # An aligner is in one thread at a time.
        self._lock = threading.RLock()

    @property
    def num_pending_bytes(self) -> int:
        """Speech that the next query has to align first."""
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
        self._enqueue(text)

    def end_text(self) -> None:
        self._enqueue(InputEnd.TEXT)

    def push(self, pcm: Pcm) -> None:
        for start in range(0, pcm.size, CHUNK_SAMPLES):
            self._enqueue(pcm[start : start + CHUNK_SAMPLES])

    def finish(self) -> None:
        self._enqueue(InputEnd.SPEECH)
        self.end_input()

    def end_input(self) -> None:
        """End the input. The estimate of this moment becomes the result."""
        with self._lock:
            self._over = True
            if not self._kept:
                self._release_aligner()

    def process_all(self) -> None:
        """Process all deferred input, in any thread; another thread waits for one piece at most."""
        while self._kept:
            with self._lock:
                self._run_next()

    def process_next(self) -> bool:
        """Process the oldest deferred input. False if another thread processes it."""
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

    def _enqueue(self, item: AlignerInput) -> None:
        if self._over:
            return
        num_bytes = _num_bytes(item)
        if num_bytes:  # counted first: another thread may process it at once
            self._backlog.add(self._share, num_bytes)
        self._kept.append(item)
        if num_bytes:
            self._backlog.trim()

    def _run_next(self) -> None:
        try:
            item = self._kept.popleft()
        except IndexError:  # discarded meanwhile
            return
        try:
            _apply(item, self._get_aligner())
        finally:
            self._backlog.remove(self._share, _num_bytes(item))
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


def _num_bytes(item: AlignerInput) -> int:
    """Bytes of speech."""
    return item.nbytes if isinstance(item, np.ndarray) else 0


def _apply(item: AlignerInput, aligner: Aligner) -> None:
    match item:
        case str():
            aligner.add_text(item)
        case np.ndarray():
            aligner.push(item)
        case InputEnd.TEXT:
            aligner.end_text()
        case InputEnd.SPEECH:
            aligner.finish()
