"""What was heard is the same whether its words were found as they sounded or when somebody asked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace

import numpy as np
import pytest

from sessions.alignment.aligner import ForcedAligner
from sessions.config import RegistryLimits, SessionLimits, SpeechSettings
from sessions.events import ResponseStatus
from sessions.registry import SessionRegistry
from sessions.timeline import ResponseTimeline
from tests.sessions.conftest import LIMITS, PACED, RecordingEngine
from tests.sessions.response_reader import read, reading_task

TEXT = "On May 3rd I paid $1,250, and it was worth it. " * 5
AT_ONCE = replace(LIMITS, max_alignment_backlog_mb=0)


async def cut_after(
    engine: RecordingEngine, limits: RegistryLimits, settings: SpeechSettings, s: float
) -> tuple[str, str]:
    """What was heard by then, and, asked once more, by half of it."""
    registry = SessionRegistry(engine, limits)
    response = registry.create(settings=settings).create_response(text=TEXT, text_closed=True)
    reading, task = reading_task(response)
    await asyncio.sleep(s)
    asked = response.heard()
    response.cancel()
    await task
    told = reading.done
    assert told.status is ResponseStatus.CANCELLED
    assert told.heard == response.heard() == asked
    earlier = await response.query_heard(1_000 * s / 2)
    await registry.aclose()
    return told.heard.text, earlier.text


@pytest.mark.virtual_time
@pytest.mark.parametrize("cut_s", [0.05, 1.0, 3.1, 5.2])
@pytest.mark.parametrize("speed", [1.0, 1.5])
async def test_an_interruption_tells_what_was_heard_as_if_words_had_been_followed(
    engine: RecordingEngine, cut_s: float, speed: float
) -> None:
    settings = replace(PACED, speed=speed)
    late = await cut_after(engine, LIMITS, settings, cut_s)
    assert late == await cut_after(engine, AT_ONCE, settings, cut_s)
    assert late == await cut_after(engine, LIMITS, replace(settings, align_eagerly=True), cut_s)
    assert all(late) == (cut_s >= 1)


@pytest.mark.virtual_time
async def test_a_response_that_nobody_interrupts_is_never_looked_through(
    engine: RecordingEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(sample_rate: int) -> None:
        raise AssertionError("somebody asked")

    registry = SessionRegistry(engine, LIMITS)
    object.__setattr__(registry._services, "make_aligner", make)
    session = registry.create(settings=PACED)
    response = session.create_response(text=TEXT, text_closed=True)
    done = (await read(response)).done
    assert done.heard.text == TEXT
    kept = registry._services.backlog
    assert kept.num_bytes > 0
    await session.aclose()
    assert kept.num_bytes == 0
    await registry.aclose()


async def test_much_kept_speech_is_looked_through_in_a_thread(
    engine: RecordingEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    catch_up = ResponseTimeline.align_until
    monkeypatch.setattr(
        ResponseTimeline,
        "align_until",
        lambda told, at: threads.append(threading.current_thread()) or catch_up(told, at),
    )
    registry = SessionRegistry(engine, RegistryLimits())
    response = registry.create(settings=replace(PACED, lead_ms=10_000)).create_response(text=TEXT, text_closed=True)
    reading, task = reading_task(response)
    await asyncio.sleep(0.8)
    response.cancel()
    await task
    assert reading.done.heard.remaining
    assert [thread is threading.main_thread() for thread in threads] == [False]
    await registry.aclose()


class BusyAligner(ForcedAligner):
    """As if others were before it in the line for the words."""

    go_on = threading.Event()

    def push(self, pcm: np.ndarray) -> None:
        self.go_on.wait(10)
        super().push(pcm)


@pytest.fixture
async def busy(engine: RecordingEngine, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SessionRegistry]:
    monkeypatch.setattr(BusyAligner, "go_on", threading.Event())
    limits = RegistryLimits(session=SessionLimits(heard_text_timeout_ms=50))
    registry = SessionRegistry(engine, limits, make_aligner=BusyAligner)
    yield registry
    BusyAligner.go_on.set()
    await registry.aclose()


async def test_the_end_is_told_though_the_line_for_the_words_is_long(busy: SessionRegistry) -> None:
    """As when an engine with hundreds of responses dies: where the listener was is then told roughly."""
    session = busy.create(settings=replace(PACED, lead_ms=10_000))
    responses = [session.create_response(text=TEXT, text_closed=True) for _ in range(3)]
    readings = [reading_task(response) for response in responses]
    await asyncio.sleep(0.8)
    for response in responses:
        response.cancel()
    async with asyncio.timeout(5):
        await asyncio.gather(*(task for _, task in readings))
    assert all(reading.done.heard.text and reading.done.heard.remaining for reading, _ in readings)
    assert [reading.done.heard.text + reading.done.heard.remaining for reading, _ in readings] == [TEXT] * 3


async def test_who_asks_after_the_end_waits_no_longer(busy: SessionRegistry) -> None:
    response = busy.create(settings=replace(PACED, lead_ms=None)).create_response(text=TEXT, text_closed=True)
    played_ms = (await read(response)).done.audio_ms / 2
    async with asyncio.timeout(5):
        roughly = await response.query_heard(played_ms)
    assert roughly.text
    assert roughly.remaining
    assert roughly.text + roughly.remaining == TEXT
