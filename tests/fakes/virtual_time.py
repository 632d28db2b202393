"""An event loop whose clock jumps to the next timer, so that a minute of conversation takes no time at all.

A test marked ``virtual_time`` runs on it. Whatever waits by ``asyncio`` or reads ``loop.time()`` lives in virtual time;
work handed to an executor is awaited in real time, with the clock standing still.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

Args = TypeVarTuple("Args")
Result = TypeVar("Result")


class VirtualTimeDeadlock(RuntimeError):
    """Every task waits, and no timer, socket or executor job is left that could wake one."""


class VirtualTimeSelector(selectors.DefaultSelector):
    """Polls for real, and turns every wait for a timer into a jump of the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.num_jobs = 0
        self.num_selects = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.num_selects += 1
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if self.num_jobs:
            return super().select(timeout=None)
        if timeout is None:
            return self._wait_for_sockets()
        self.now_s += timeout
        return []

    def _wait_for_sockets(self) -> list[tuple[selectors.SelectorKey, int]]:
        only_the_loops_own_pipe = len(self.get_map()) <= 1
        if only_the_loops_own_pipe:
            raise VirtualTimeDeadlock("every task waits and nothing is left that could wake one")
        return super().select(None)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Starts at 0 s; ``time()`` moves only when everything that runs waits for a timer."""

    def __init__(self) -> None:
        self._jumping = VirtualTimeSelector()
        super().__init__(self._jumping)

    @property
    def num_iterations(self) -> int:
        """Event loop iterations so far: each polls once."""
        return self._jumping.num_selects

    def time(self) -> float:
        return self._jumping.now_s

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Args], Result], *args: *Args
    ) -> asyncio.Future[Result]:
        future = super().run_in_executor(executor, func, *args)
        self._jumping.num_jobs += 1
        future.add_done_callback(self._job_done)
        return future

    async def shutdown_default_executor(self, *args: Any) -> None:
        self._jumping.num_jobs += 1  # a thread joins the executor's
        try:
            await super().shutdown_default_executor(*args)
        finally:
            self._jumping.num_jobs -= 1

    def _job_done(self, _: asyncio.Future[Any]) -> None:
        self._jumping.num_jobs -= 1
