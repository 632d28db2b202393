"""An alarm wakes its waiter once: by a ring, kept if nobody waits, or at its moment."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.clock import TICK_S, WakeEvent, is_due, next_tick, now_s

pytestmark = pytest.mark.virtual_time


async def test_it_wakes_at_its_moment():
    await WakeEvent().wait(until_s=2.0)
    assert now_s() == pytest.approx(2.0, abs=TICK_S)


async def test_a_ring_wakes_earlier_and_leaves_no_timer():
    alarm = WakeEvent()
    asyncio.get_running_loop().call_later(1.0, alarm.set)
    await alarm.wait(until_s=5.0)
    assert now_s() == pytest.approx(1.0)
    await alarm.wait(until_s=9.0)
    assert now_s() == pytest.approx(9.0, abs=TICK_S)


async def test_a_ring_is_kept_for_the_next_wait_and_only_for_that():
    alarm = WakeEvent()
    alarm.set()
    alarm.set()
    await alarm.wait()
    assert now_s() == 0.0
    await alarm.wait(until_s=1.0)
    assert now_s() == pytest.approx(1.0, abs=TICK_S)


async def test_a_cancelled_wait_leaves_nothing_behind():
    alarm = WakeEvent()
    waiting = asyncio.create_task(alarm.wait(until_s=1.0))
    await asyncio.sleep(0.5)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await alarm.wait(until_s=3.0)
    assert now_s() == pytest.approx(3.0, abs=TICK_S)


@pytest.mark.parametrize(("moment_s", "tick_s"), [(0.0, 0.0), (0.001, TICK_S), (TICK_S, TICK_S)])
def test_ticks_never_come_early(moment_s, tick_s):
    assert next_tick(moment_s) == pytest.approx(tick_s)


@given(st.floats(0, 1e6))
def test_a_moment_is_due_at_its_tick(moment_s):
    assert is_due(moment_s, now_s=next_tick(moment_s) - 1e-9)
