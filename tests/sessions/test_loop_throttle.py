"""What comes together is done one by one, and what else is due comes between."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest

from sessions.alignment.uniform_aligner import UniformAligner
from sessions.config import AudioFormat, Encoding, SessionLimits, SpeechSettings
from sessions.loop_throttle import LoopThrottle
from sessions.registry import SessionRegistry
from tests.sessions.conftest import BURST, LIMITS, PACED, RecordingEngine
from tests.sessions.response_reader import read, reading_task

NUM = 8


async def turns_taken(turns: LoopThrottle) -> list[int]:
    """The turn of the loop in which each had its."""
    loop, now, found = asyncio.get_running_loop(), 0, []

    def count() -> None:
        nonlocal now
        now += 1
        if len(found) < NUM:
            loop.call_soon(count)

    async def work() -> None:
        await turns.wait_turn()
        found.append(now)

    loop.call_soon(count)
    await asyncio.gather(*(work() for _ in range(NUM)))
    return found


async def test_no_two_share_a_turn() -> None:
    turns = LoopThrottle()
    for _ in range(3):
        found = await turns_taken(turns)
        assert len(set(found)) == NUM
        assert found == sorted(found)


async def test_who_does_not_wait_any_more_holds_up_nobody() -> None:
    turns = LoopThrottle()
    await turns.wait_turn()
    waiting = [asyncio.create_task(turns.wait_turn()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    async with asyncio.timeout(5):
        await asyncio.gather(*waiting[1:])
    await asyncio.sleep(0.01)
    assert not turns._taken


@pytest.mark.virtual_time
async def test_the_packets_are_the_same(engine: RecordingEngine) -> None:
    settings = SpeechSettings(format=AudioFormat(encoding=Encoding.MULAW, sample_rate=8_000))
    packets = {}
    for in_turn in (False, True):
        limits = replace(LIMITS, session=SessionLimits(chunks_in_turn=in_turn))
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
async def test_very_many_flushes_hold_up_nobody(registry: SessionRegistry, settings: SpeechSettings) -> None:
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
