"""Encoders run beside the event loop, in one thread at a time each, or in turns on it."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from itertools import pairwise

import pytest

from sessions.alignment.uniform_aligner import UniformAligner
from sessions.config import AudioFormat, Encoding, SessionLimits, SpeechSettings
from sessions.encoders import EncoderPool
from sessions.registry import SessionRegistry
from tests.sessions.conftest import BURST, LIMITS, PACED, RecordingEngine
from tests.sessions.response_reader import read, reading_task

NUM = 8


@pytest.mark.parametrize("num_threads", [1, 2])
async def test_work_runs_off_the_event_loop(num_threads: int):
    pool = EncoderPool(num_threads)
    started, go_on = threading.Event(), threading.Event()

    def work() -> str:
        started.set()
        go_on.wait(10)
        return threading.current_thread().name

    task = asyncio.create_task(pool.run(work))
    while not started.is_set():
        await asyncio.sleep(0.001)
    go_on.set()
    assert (await task).startswith("voicewire-encoder")
    pool.close()
    pool.close()


async def test_without_threads_work_runs_in_place():
    assert await EncoderPool(0).run(threading.current_thread) is threading.main_thread()


async def test_error_of_the_work_is_raised():
    pool = EncoderPool(1)
    with pytest.raises(ZeroDivisionError):
        await pool.run(lambda: 1 // 0)
    pool.close()


async def turns_taken(pool: EncoderPool) -> list[int]:
    """The event loop iterations in which the callers returned."""
    loop, now, found = asyncio.get_running_loop(), 0, []

    def count() -> None:
        nonlocal now
        now += 1
        if len(found) < NUM:
            loop.call_soon(count)

    async def work() -> None:
        await pool.wait_turn()
        found.append(now)

    loop.call_soon(count)
    await asyncio.gather(*(work() for _ in range(NUM)))
    return found


async def test_no_two_callers_share_an_iteration() -> None:
    pool = EncoderPool(0)
    for _ in range(3):
        found = await turns_taken(pool)
        assert len(set(found)) == NUM
        assert found == sorted(found)


async def test_cancelled_caller_does_not_block_the_next() -> None:
    pool = EncoderPool(0)
    await pool.wait_turn()
    waiting = [asyncio.create_task(pool.wait_turn()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    async with asyncio.timeout(5):
        await asyncio.gather(*waiting[1:])
    await asyncio.sleep(0.01)
    assert not pool._has_turn


@pytest.mark.virtual_time
async def test_turns_do_not_change_the_packets(engine: RecordingEngine) -> None:
    settings = SpeechSettings(format=AudioFormat(encoding=Encoding.MULAW, sample_rate=8_000))
    packets = {}
    for in_turn in (False, True):
        limits = replace(LIMITS, session=SessionLimits(one_chunk_per_loop_iteration=in_turn))
        registry = SessionRegistry(engine, limits, make_aligner=UniformAligner)
        texts = [f"This is sentence {number}, which says nothing much." for number in range(4)]
        responses = [registry.create(settings=settings).create_response(text=text, text_closed=True) for text in texts]
        readings = await asyncio.gather(*(read(response) for response in responses))
        packets[in_turn] = [
            b"".join(packet for message in reading.audio for packet in message.packets) for reading in readings
        ]
        await registry.aclose()
    assert packets[True] == packets[False]
    assert all(packets[True])


@pytest.mark.parametrize("settings", [BURST, replace(PACED, lead_ms=200)], ids=["burst", "paced"])
async def test_many_flushes_do_not_block_the_event_loop(registry: SessionRegistry, settings: SpeechSettings) -> None:
    """Whether they wait for speech to be made or to be played."""
    response = registry.create(settings=settings).create_response(text="Hello there. ")
    for _ in range(5_000):
        response.flush()
    response.end_input()
    reading, task = reading_task(response)
    nums = [0]
    while not reading.ended:
        await asyncio.sleep(0)
        nums.append(len(reading.events))
    await task
    assert [flush.flush for flush in reading.flushes] == list(range(5_000))
    assert max(later - earlier for earlier, later in pairwise(nums)) <= 100, "in one turn of the loop"
