from __future__ import annotations

import asyncio
import os
import signal

import pytest

from realtime.signals import STOP_SIGNALS, run_until_signal


@pytest.mark.parametrize("number", STOP_SIGNALS)
async def test_a_signal_in_the_last_moment_of_a_start_ends_it_too(number: signal.Signals) -> None:
    before = signal.getsignal(number)

    async def start() -> None:
        await asyncio.sleep(0.01)
        os.kill(os.getpid(), number)

    assert not await run_until_signal(start())
    assert signal.getsignal(number) == before


async def test_a_start_that_nobody_stops_comes_to_its_end() -> None:
    assert await run_until_signal(asyncio.sleep(0.01))
