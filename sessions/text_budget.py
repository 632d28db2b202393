"""The characters of text that one event loop iteration normalizes and segments, shared fairly between sessions."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

# The costliest texts take 20 to 50 us of processor time a character: with the block of up to 600 characters that the
# last of them may complete, an iteration stays below 20 ms.
MAX_CHARS_PER_ITERATION = 128
# Characters that one reader reads at most while others wait.
MAX_CHARS_PER_TURN = 64


class TextReader(Protocol):
    def advance(self) -> None:
        """Read text as far as ``TextQueue.allow`` allows, and act on it."""
        ...


class TextBudget:
    """Give the queues of all sessions their turns, one after the other. Belongs to one event loop."""

    def __init__(self) -> None:
        self.num_left = MAX_CHARS_PER_ITERATION
        self._queues: deque[TextQueue] = deque()
        self._next_iteration: asyncio.Handle | None = None

    def create_queue(self) -> TextQueue:
        """The queue of one session."""
        return TextQueue(self)

    @property
    def is_contended(self) -> bool:
        """Some reader waits for its turn."""
        return bool(self._queues)

    def spend(self, num_chars: int) -> None:
        """Count characters that were read; beyond what is left they count for the next iterations."""
        self.num_left -= num_chars
        self._schedule()

    def enter(self, queue: TextQueue) -> None:
        """Put a queue behind all others."""
        self._queues.append(queue)
        self._schedule()

    def leave(self, queue: TextQueue) -> None:
        self._queues.remove(queue)

    def _schedule(self) -> None:
        if self._next_iteration is None:
            self._next_iteration = asyncio.get_running_loop().call_soon(self._begin_iteration)

    def _begin_iteration(self) -> None:
        self._next_iteration = None
        self.num_left = min(self.num_left + MAX_CHARS_PER_ITERATION, MAX_CHARS_PER_ITERATION)
        try:
            while self._queues and self.num_left > 0:
                self._queues.popleft().run_turn()
        finally:
            if self._queues or self.num_left < MAX_CHARS_PER_ITERATION:
                self._schedule()


class TextQueue:
    """The readers of one session: they take turns, and the session takes turns with others."""

    def __init__(self, budget: TextBudget) -> None:
        self._budget = budget
        # Insertion order: oldest first.
        self._readers: dict[TextReader, None] = {}
        self._current: TextReader | None = None
        self._num_left_in_turn = 0

    def allow(self, reader: TextReader) -> int:
        """Return how many characters ``reader`` can read now. If none, ``advance`` is called at its turn."""
        num_chars = min(self._budget.num_left, self._num_allowed(reader))
        if num_chars <= 0:
            self._enter(reader)
        return max(num_chars, 0)

    def spend(self, num_chars: int) -> None:
        """Count characters that a reader has read."""
        self._num_left_in_turn -= num_chars
        self._budget.spend(num_chars)

    def leave(self, reader: TextReader) -> None:
        """Give up the turn that ``reader`` waits for, if it does."""
        if reader in self._readers:
            del self._readers[reader]
            if not self._readers:
                self._budget.leave(self)

    def run_turn(self) -> None:
        reader = next(iter(self._readers))
        del self._readers[reader]
        if self._readers:
            self._budget.enter(self)
        self._current, self._num_left_in_turn = reader, MAX_CHARS_PER_TURN
        try:
            reader.advance()
        finally:
            self._current = None

    def _num_allowed(self, reader: TextReader) -> int:
        if reader is self._current:
            return self._num_left_in_turn
        return 0 if self._budget.is_contended else MAX_CHARS_PER_ITERATION

    def _enter(self, reader: TextReader) -> None:
        if not self._readers:
            self._budget.enter(self)
        self._readers[reader] = None
