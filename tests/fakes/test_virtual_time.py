from __future__ import annotations

import asyncio
import socket
import threading
import time

import pytest

from tests.fakes.virtual_time import VirtualTimeDeadlock, VirtualTimeLoop

pytestmark = pytest.mark.virtual_time


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def test_an_hour_passes_at_once():
    real_start_s, start_s = time.monotonic(), now_s()
    await asyncio.sleep(3600)
    assert now_s() - start_s == pytest.approx(3600)
    assert time.monotonic() - real_start_s < 60


async def test_timers_fire_in_the_order_of_their_times():
    order: list[tuple[str, float]] = []

    async def wait(name: str, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        order.append((name, round(now_s(), 6)))

    await asyncio.gather(wait("c", 3), wait("a", 1), wait("b", 1.5))
    assert order == [("a", 1.0), ("b", 1.5), ("c", 3.0)]


async def test_a_timeout_is_virtual_too():
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(500):
            await asyncio.Event().wait()
    assert now_s() == pytest.approx(500)


async def test_the_clock_stands_while_an_executor_works():
    release = threading.Event()
    job = asyncio.create_task(asyncio.to_thread(release.wait))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(100, job.cancel)
    threading.Timer(0.05, release.set).start()
    assert await job is True
    assert now_s() == 0


async def test_real_sockets_are_waited_for():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        threading.Timer(0.05, theirs.send, [b"hello"]).start()
        assert await asyncio.get_running_loop().sock_recv(ours, 10) == b"hello"


def test_a_wait_that_nothing_can_end_is_an_error():
    loop = VirtualTimeLoop()
    task = loop.create_task(asyncio.Event().wait())
    with pytest.raises(VirtualTimeDeadlock):
        loop.run_until_complete(task)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()
