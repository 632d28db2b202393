"""The fake engine follows its script. What every engine promises is in tests/engine/test_api.py, for the fake, too."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import (
    EngineDead,
    FinishReason,
    RequestFinished,
    RequestParked,
    RequestTooLong,
    SamplingParams,
    SpeechChunk,
    SpeechEvent,
    SpeechRequest,
    SpeechStream,
    TextLayout,
)
from tests.fakes.engine import FRAME_S, FRAME_SAMPLES, FakeScript, FakeSpeechEngine
from tests.fakes.virtual_time import VirtualTimeLoop

pytestmark = pytest.mark.virtual_time

HELLO = "Hello there, how are you?"  # 25 characters, 1.5 s: 18 frames and one to finish on


def now_s() -> float:
    return asyncio.get_running_loop().time()


def request(request_id: str = "r", **fields: Any) -> SpeechRequest:
    return SpeechRequest(request_id=request_id, **fields)


async def events_of(stream: SpeechStream) -> list[SpeechEvent]:
    return [event async for event in stream]


def chunks_in(events: list[SpeechEvent]) -> list[SpeechChunk]:
    return [event for event in events if isinstance(event, SpeechChunk)]


def terminal(events: list[SpeechEvent]) -> RequestFinished:
    """The one terminal event, which is the last."""
    assert [isinstance(event, RequestFinished) for event in events].count(True) == 1
    assert isinstance(events[-1], RequestFinished)
    return events[-1]


def all_is_free(engine: FakeSpeechEngine) -> bool:
    stats = engine.stats()
    return stats.slots_free == stats.slots_total and stats.blocks_free == stats.blocks_total and not engine.streams


async def test_text_becomes_audio_of_the_scripted_length_and_speed(engine):
    stream = engine.submit(request(text=HELLO, text_closed=True, sampling=SamplingParams(seed=7)))
    events = await events_of(stream)
    end = terminal(events)
    assert (end.reason, end.num_frames, end.num_samples, end.seed) == (FinishReason.STOP, 19, 19 * FRAME_SAMPLES, 7)
    assert end.first_audio_ms == pytest.approx(100)
    assert now_s() == pytest.approx(0.1 + 18 * FRAME_S * 0.25)
    assert [chunk.last for chunk in chunks_in(events)] == [False] * 18 + [True]


async def speak_in_pieces(pieces: list[str], pauses_s: list[float], script: FakeScript) -> list[SpeechEvent]:
    engine = FakeSpeechEngine(script)
    await engine.start()
    stream = engine.submit(request())
    reading = asyncio.create_task(events_of(stream))
    for piece, pause_s in zip(pieces, pauses_s, strict=False):
        stream.push_text(piece)
        await asyncio.sleep(pause_s)
    stream.end_input()
    events = await reading
    await stream.released()
    assert all_is_free(engine)
    return events


@given(
    cuts=st.lists(st.integers(0, len(HELLO)), max_size=6).map(sorted),
    pauses_s=st.lists(st.floats(0, 2), min_size=7, max_size=7),
    chunk_frames=st.integers(1, 5),
)
def test_any_cut_of_the_text_gives_the_same_audio(cuts, pauses_s, chunk_frames):
    pieces = [HELLO[i:j] for i, j in zip([0, *cuts], [*cuts, len(HELLO)], strict=True)]
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        events = runner.run(speak_in_pieces(pieces, pauses_s, FakeScript(chunk_frames=chunk_frames)))
        whole = runner.run(speak_in_pieces([HELLO], [0.0], FakeScript()))
    assert np.array_equal(audio(events), audio(whole))


def audio(events: list[SpeechEvent]) -> np.ndarray:
    return np.concatenate([chunk.pcm for chunk in chunks_in(events)])


async def test_starved_is_reported_once_and_text_continues(engine):
    stream = engine.submit(request())
    await asyncio.sleep(5)
    stream.push_text("Hello there ")
    await asyncio.sleep(5)
    stream.push_text("again.")
    stream.end_input()
    kinds = [type(event) for event in await events_of(stream)]
    assert kinds == [SpeechChunk] * 8 + [RequestParked] + [SpeechChunk] * 6 + [RequestFinished]


async def test_a_word_is_final_only_when_the_next_begins(engine):
    stream = engine.submit(request(text="Hel"))
    await asyncio.sleep(5)
    assert engine.stats().num_parked == 1
    stream.push_text("lo ")
    assert isinstance(await anext(aiter(stream)), SpeechChunk)


async def test_full_layout_waits_for_the_end_of_the_text(engine):
    stream = engine.submit(request(text="Hello there ", layout=TextLayout.FULL))
    await asyncio.sleep(5)
    assert stream.num_frames == 0
    stream.end_input()
    events = await events_of(stream)
    assert not any(isinstance(event, RequestParked) for event in events)
    assert terminal(events).reason is FinishReason.STOP


async def test_it_stays_within_its_lead_and_follows_playback_reports(engine):
    stream = engine.submit(request(text="a " * 200, text_closed=True, lead_ms=1000))
    await asyncio.sleep(5)
    generated_s = stream.num_frames * FRAME_S
    assert generated_s == pytest.approx(5 + 1, abs=0.2)
    stream.report_playback(0)
    await asyncio.sleep(4)
    assert stream.num_frames * FRAME_S == pytest.approx(generated_s)


async def test_cancel_fences_everything_queued_and_frees_within_a_step(engine):
    stream = engine.submit(request(text=HELLO, text_closed=True))
    await asyncio.sleep(0.3)
    cancelled_s = now_s()
    stream.cancel()
    stream.cancel()
    assert [type(event) for event in await events_of(stream)] == [RequestFinished]
    await stream.released()
    assert now_s() - cancelled_s <= engine.step_s + 1e-6
    assert all_is_free(engine)


@pytest.mark.parametrize("delay_s", [0, 0.05, 0.1, 0.5, 60])
async def test_cancel_at_any_time_gives_one_terminal_event(engine, delay_s):
    stream = engine.submit(request(text=HELLO, text_closed=True))
    await asyncio.sleep(delay_s)
    stream.cancel()
    assert terminal(await events_of(stream)).reason is FinishReason.CANCELLED
    await stream.released()
    assert all_is_free(engine)


async def test_requests_wait_for_a_slot_and_too_many_are_refused():
    engine = FakeSpeechEngine(num_slots=1, max_queued_requests=1)
    await engine.start()
    first = engine.submit(request("a", text=HELLO, text_closed=True))
    await asyncio.sleep(0)
    second = engine.submit(request("b", text=HELLO, text_closed=True))
    refused = terminal(await events_of(engine.submit(request("c", text=HELLO, text_closed=True))))
    assert refused.error.code == "overloaded"
    assert refused.error.retry_after_ms > 0
    assert terminal(await events_of(first)).queue_ms == 0
    assert terminal(await events_of(second)).queue_ms > 400
    await engine.aclose()


async def test_a_failing_request_fails_alone(engine):
    engine.script_next(FakeScript(fail_at_frame=3))
    failing = engine.submit(request("a", text=HELLO, text_closed=True))
    healthy = engine.submit(request("b", text=HELLO, text_closed=True))
    await asyncio.sleep(60)
    end = terminal(await events_of(failing))
    assert (end.reason, end.num_frames, end.error.code) == (FinishReason.ERROR, 3, "engine_error")
    assert terminal(await events_of(healthy)).reason is FinishReason.STOP


async def test_a_dying_engine_fails_every_request_and_refuses_more(engine):
    engine.script_next(FakeScript(die_at_frame=2))
    streams = [engine.submit(request(name, text=HELLO, text_closed=True)) for name in "ab"]
    ends = [terminal(await events_of(stream)) for stream in streams]
    assert [end.error.code for end in ends] == ["engine_dead"] * 2
    assert not engine.is_alive
    with pytest.raises(EngineDead):
        engine.submit(request("c", text=HELLO, text_closed=True))
    await engine.start()
    assert terminal(await events_of(engine.submit(request("d", text=HELLO, text_closed=True)))).num_frames == 19


async def test_scripted_end_and_stall(engine):
    script = FakeScript(end_at_frame=4, end_reason=FinishReason.LOOP, stalls_s={2: 7.0})
    engine.script_next(script)
    events = await events_of(engine.submit(request(text=HELLO, text_closed=True)))
    assert terminal(events).reason is FinishReason.LOOP
    assert now_s() > 7


async def test_the_frame_cap_ends_with_length(engine):
    end = terminal(await events_of(engine.submit(request(text=HELLO, text_closed=True, max_frames=5))))
    assert (end.reason, end.num_frames) == (FinishReason.LENGTH, 5)


async def test_text_above_the_limit_ends_its_request(engine):
    stream = engine.submit(request(text="a " * 2_001))
    assert terminal(await events_of(stream)).error.code == RequestTooLong.code
    await stream.released()
    assert all_is_free(engine)
