"""SIGTERM and Ctrl-C while something is still starting: it is given up, and the program ends well."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Iterations of the event loop until the handler of a pending signal has run.
NUM_LOOP_PASSES = 3


async def run_until_signal(work: Coroutine[Any, Any, None]) -> bool:
    """Run the work; return False if a signal cancelled it. Call it in the main thread."""
    working = asyncio.create_task(work, name="voicewire start")
    signaled = False

    def stop() -> None:
        nonlocal signaled
        signaled = True
        working.cancel()

    with _handled_by(stop):
        try:
            await working
            for _ in range(NUM_LOOP_PASSES):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            if not signaled:
                raise
    return not signaled


@contextmanager
def _handled_by(stop: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
