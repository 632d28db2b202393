"""Encoders work beside the event loop, one thread at a time each, and leave no thread."""

from __future__ import annotations

import asyncio
import threading

import pytest

from sessions.encoder_pool import EncoderPool


@pytest.mark.parametrize("num_threads", [1, 2])
async def test_work_is_done_off_the_loop(num_threads: int):
    threads = EncoderPool(num_threads)
    started, go_on = threading.Event(), threading.Event()

    def work() -> str:
        started.set()
        go_on.wait(10)
        return threading.current_thread().name

    task = asyncio.create_task(threads.run(work))
    while not started.is_set():
        await asyncio.sleep(0.001)
    go_on.set()
    assert (await task).startswith("voicewire-encoder")
    threads.close()
    threads.close()


async def test_without_threads_it_is_done_in_place():
    assert await EncoderPool(0).run(threading.current_thread) is threading.main_thread()


async def test_an_error_comes_back():
    threads = EncoderPool(1)
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 // 0)
    threads.close()
