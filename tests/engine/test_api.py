"""What every engine promises, asked of the real one and of the fake that stands in for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.api import (
    EngineDead,
    FinishReason,
    InvalidRequest,
    RequestFinished,
    RequestParked,
    SamplingParams,
    SpeechChunk,
    SpeechEngine,
    SpeechEvent,
    SpeechRequest,
    SpeechStream,
    UnknownLanguage,
    UnknownVoice,
)
from engine.launch import create_engine
from tests.fakes.checkpoints import write_checkpoint
from tests.fakes.engine import FakeScript, FakeSpeechEngine

pytestmark = pytest.mark.usefixtures("quick_engines")

TEXT = "hello there, the quick brown fox jumps over the lazy dog"
MAX_FRAMES = 30


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(params=["real", "fake"])
async def engine(request, checkpoint) -> AsyncIterator[SpeechEngine]:
    engine: SpeechEngine
    if request.param == "real":
        engine = create_engine(checkpoint, device="cpu", max_running_requests=4, lazy_graph_capture=True)
    else:
        engine = FakeSpeechEngine(FakeScript(first_chunk_s=0.01, real_time_factor=0.01), num_slots=4)
    await engine.start()
    yield engine
    await engine.aclose()


def speech(request_id: str = "r", **fields: Any) -> SpeechRequest:
    return SpeechRequest(request_id=request_id, max_frames=MAX_FRAMES, **fields)


async def events_of(stream: SpeechStream) -> list[SpeechEvent]:
    return [event async for event in stream]


def terminal(events: list[SpeechEvent]) -> RequestFinished:
    [end] = [event for event in events if isinstance(event, RequestFinished)]
    assert events[-1] is end
    return end


def chunks_in(events: list[SpeechEvent]) -> list[SpeechChunk]:
    return [event for event in events if isinstance(event, SpeechChunk)]


async def assert_all_free(engine: SpeechEngine, *streams: SpeechStream) -> None:
    for stream in streams:
        await stream.released()
    stats = engine.stats()
    assert (stats.slots_free, stats.blocks_free) == (stats.slots_total, stats.blocks_total)
    assert (stats.num_waiting, stats.num_running) == (0, 0)


async def test_both_sides_of_the_door_have_its_shape(engine):
    assert isinstance(engine, SpeechEngine)
    stream = engine.submit(speech())
    assert isinstance(stream, SpeechStream)
    assert stream.request_id == "r"


async def test_audio_abuts_and_is_counted_in_the_one_terminal_event(engine):
    stream = engine.submit(speech(text=TEXT, text_closed=True, sampling=SamplingParams(seed=3)))
    events = await events_of(stream)
    end, chunks = terminal(events), chunks_in(events)
    ends = np.cumsum([len(chunk.pcm) for chunk in chunks]).tolist()
    assert [chunk.start_sample for chunk in chunks] == [0, *ends[:-1]]
    assert end.num_samples == ends[-1] == end.num_frames * engine.info.frame_samples
    assert end.seed == 3
    assert end.first_audio_ms is not None
    assert all(chunk.pcm.dtype == np.float32 and np.abs(chunk.pcm).max() <= 1 for chunk in chunks)
    await assert_all_free(engine, stream)


async def test_wake_is_called_for_each_event_that_next_event_returns(engine):
    arrived = asyncio.Semaphore(0)
    stream = engine.submit(speech(text=TEXT, text_closed=True), arrived.release)
    assert stream.next_event() is None
    events: list[SpeechEvent] = []
    while not events or not isinstance(events[-1], RequestFinished):
        await arrived.acquire()
        event = stream.next_event()
        assert event is not None
        events.append(event)
    assert terminal(events).num_samples == sum(len(chunk.pcm) for chunk in chunks_in(events)) > 0
    assert stream.next_event() is None
    await assert_all_free(engine, stream)


async def test_open_text_starves_once_and_goes_on_with_more(engine):
    stream = engine.submit(speech(text="hello there "))
    events = aiter(stream)
    before = []
    while not before or not isinstance(before[-1], RequestParked):
        before.append(await anext(events))
    stream.push_text("the quick brown fox ")
    stream.end_input()
    after = [event async for event in events]
    assert terminal(after).num_samples == sum(len(chunk.pcm) for chunk in chunks_in(before + after))
    await assert_all_free(engine, stream)


async def test_no_audio_before_text(engine):
    stream = engine.submit(speech())
    waiting = asyncio.create_task(anext(aiter(stream)))
    assert await asyncio.wait([waiting], timeout=0.1) == (set(), {waiting})
    stream.cancel()
    assert (await waiting).reason is FinishReason.CANCELLED


@pytest.mark.parametrize("num_read", [0, 1, 2])
async def test_after_a_cancel_the_terminal_event_is_next_and_last(engine, num_read):
    stream = engine.submit(speech(text=TEXT, text_closed=True))
    events = aiter(stream)
    for _ in range(num_read):
        await anext(events)
    stream.cancel()
    stream.cancel()
    assert [event.reason async for event in events] == [FinishReason.CANCELLED]
    await assert_all_free(engine, stream)


async def test_a_cancel_fences_what_was_made_and_not_read(engine):
    stream = engine.submit(speech(text=TEXT, text_closed=True))
    await stream.released()
    stream.cancel()
    assert [event.reason for event in await events_of(stream)] == [FinishReason.CANCELLED]


async def test_a_cancel_after_the_end_changes_nothing(engine):
    stream = engine.submit(speech(text=TEXT, text_closed=True))
    await events_of(stream)
    stream.cancel()
    stream.end_input()
    stream.push_text("more")
    stream.report_playback(0)
    await assert_all_free(engine, stream)


async def test_text_closed_without_a_word_is_an_error_of_that_request(engine):
    stream = engine.submit(speech())
    stream.push_text("  ")
    stream.end_input()
    end = terminal(await events_of(stream))
    assert (end.reason, end.error.code) == (FinishReason.ERROR, "invalid_request")
    await assert_all_free(engine, stream)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"voice": "nobody"}, UnknownVoice),
        ({"language": "klingon"}, UnknownLanguage),
        ({"text": " ", "text_closed": True}, InvalidRequest),
    ],
)
async def test_bad_request_ends_with_its_error(engine, fields, error):
    stream = engine.submit(speech(**fields))
    (end,) = await events_of(stream)
    assert (end.reason, end.error.code) == (FinishReason.ERROR, error.code)
    assert end.error.param in fields
    await assert_all_free(engine, stream)


async def test_text_after_its_close_is_refused(engine):
    stream = engine.submit(speech(text=TEXT, text_closed=True))
    with pytest.raises(InvalidRequest):
        stream.push_text("more")
    stream.end_input()


async def test_more_requests_than_slots_all_end(engine):
    streams = [engine.submit(speech(str(index), text=TEXT, text_closed=True)) for index in range(9)]
    ends = [terminal(events) for events in await asyncio.gather(*map(events_of, streams))]
    assert {end.reason for end in ends} <= {FinishReason.STOP, FinishReason.LENGTH, FinishReason.LOOP}
    await assert_all_free(engine, *streams)


async def test_closing_ends_what_runs_and_refuses_what_comes(engine):
    stream = engine.submit(speech(text=TEXT))
    await engine.aclose()
    await engine.aclose()
    assert terminal(await events_of(stream)).reason in (FinishReason.CANCELLED, FinishReason.ERROR)
    await stream.released()
    assert not engine.is_alive
    with pytest.raises(EngineDead):
        engine.submit(speech(text=TEXT))
