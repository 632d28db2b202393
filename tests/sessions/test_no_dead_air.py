"""A slow writer is heard as a pause between utterances, never as a break inside one."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sessions.clock import now_s
from sessions.registry import SessionRegistry
from sessions.response import Response
from tests.sessions.conftest import PACED, RecordingEngine
from tests.sessions.response_reader import reading_task

pytestmark = pytest.mark.virtual_time

# 28 characters: 1.68 s of speech.
SIX_WORDS = "one two three four five six "


def left_ms(response: Response) -> float:
    return response._ring.left_ms(now_s())


async def test_a_segment_short_of_text_is_closed_when_little_is_left_to_hear(
    registry: SessionRegistry, engine: RecordingEngine
):
    response = registry.create(settings=PACED).create_response(text=SIX_WORDS)
    reading_task(response)
    segment = response._text.open
    assert segment is not None
    while not segment.closed:
        assert left_ms(response) >= 290 or not segment.is_parked
        await asyncio.sleep(0.005)
    assert 280 <= left_ms(response) <= 300
    response.cancel()


async def test_a_word_half_written_is_not_cut_in_two(registry: SessionRegistry, engine: RecordingEngine):
    response = registry.create(settings=PACED).create_response(text=SIX_WORDS + "sev")
    _, task = reading_task(response)
    await asyncio.sleep(5)
    response.push_text("en eight nine. ")
    response.end_input()
    done = (await task).done
    assert engine.texts == [SIX_WORDS, "seven eight nine. "]
    assert done.heard.text == SIX_WORDS + "seven eight nine. "


@pytest.mark.parametrize("text", ["one two three ", "one two three four fi"])
async def test_a_segment_of_few_words_and_no_mark_waits(registry: SessionRegistry, engine: RecordingEngine, text: str):
    response = registry.create(settings=PACED).create_response(text=text)
    _, task = reading_task(response)
    await asyncio.sleep(30)
    response.push_text(" and more ")
    response.end_input()
    await task
    assert len(engine.texts) == 1


async def test_a_clause_mark_lets_few_words_go(registry: SessionRegistry, engine: RecordingEngine):
    response = registry.create(settings=PACED).create_response(text="Well, ")
    _, task = reading_task(response)
    await asyncio.sleep(5)
    response.push_text("then. ")
    response.end_input()
    await task
    assert engine.texts == ["Well, ", "then. "]


async def test_with_the_rule_off_the_segment_waits(registry: SessionRegistry, engine: RecordingEngine):
    response = registry.create(settings=replace(PACED, avoid_dead_air=False)).create_response(text=SIX_WORDS)
    _, task = reading_task(response)
    await asyncio.sleep(30)
    response.push_text("seven.")
    response.end_input()
    await task
    assert engine.texts == [SIX_WORDS + "seven."]


async def test_text_in_time_keeps_the_segment_open(registry: SessionRegistry, engine: RecordingEngine):
    response = registry.create(settings=PACED).create_response(text=SIX_WORDS)
    _, task = reading_task(response)
    for _ in range(6):
        await asyncio.sleep(1.2)
        response.push_text(SIX_WORDS)
    response.end_input()
    await task
    assert engine.texts == [SIX_WORDS * 7]


async def test_what_comes_after_an_early_close_gathers_until_little_is_left_or_a_sentence_is_whole(
    registry: SessionRegistry, engine: RecordingEngine
):
    response = registry.create(settings=PACED).create_response(text=SIX_WORDS)
    _, task = reading_task(response)
    segment = response._text.open
    assert segment is not None
    while not segment.closed:
        await asyncio.sleep(0.005)
    response.push_text("seven ")
    while len(engine.texts) < 2:
        await asyncio.sleep(0.005)
        gathered = response._text.open
        assert gathered is not None
        assert gathered.is_gathering
    assert left_ms(response) < 400
    response.cancel()
    await task
