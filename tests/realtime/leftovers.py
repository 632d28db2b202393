"""Objects that a connection leaves behind, counted with the garbage collector off, and logged warnings."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.realtime.live_server import LiveServer

PACKAGES = ("realtime.", "sessions.", "uvicorn.protocols.")
# Only a failing check waits that long: on busy cores a worker thread holds what it works on for seconds.
FREE_AFTER_S = 30.0


def living_objects() -> Counter[str]:
    """Objects of ours, and of the protocols below, by class."""
    kinds = Counter(map(type, gc.get_objects()))
    return Counter(
        {
            f"{kind.__module__}.{kind.__qualname__}": count
            for kind, count in kinds.items()
            if isinstance(kind.__module__, str) and kind.__module__.startswith(PACKAGES)
        }
    )


@contextmanager
def without_collections() -> Iterator[None]:
    """Turn collections off, and set objects that exist already apart: none of them is counted."""
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.enable()


async def leaves_no_object(live: LiveServer, visit: Callable[[], Awaitable[None]]) -> None:
    """A first visit fills what is cached."""
    await visit()
    await live.freed()
    with without_collections():
        await visit()
        await live.freed()
        end_s = time.monotonic() + FREE_AFTER_S
        while (left := living_objects()) and time.monotonic() < end_s:
            await asyncio.sleep(0.02)
        assert left == Counter(), f"still alive after {FREE_AFTER_S:g} s: {dict(left)}"


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Messages that were logged as warnings or errors."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
