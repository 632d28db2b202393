from __future__ import annotations

import asyncio
import os
import signal

import pytest

from realtime.signals import STOP_SIGNALS, unless_told_to_stop


@pytest.mark.parametrize("number", STOP_SIGNALS)
async def test_a_signal_in_the_last_moment_of_a_start_ends_it_too(number: signal.Signals) -> None:
    before = signal.getsignal(number)

    async def start() -> None:
        await asyncio.sleep(0.01)
        os.kill(os.getpid(), number)

    assert not await unless_told_to_stop(start())
    assert signal.getsignal(number) == before


async def test_a_start_that_nobody_stops_comes_to_its_end() -> None:
    assert await unless_told_to_stop(asyncio.sleep(0.01))
