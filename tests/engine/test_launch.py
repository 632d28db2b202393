"""The asyncio side over a real thread: fences, releases, overload, and a loop that dies in the middle of speech."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import numpy as np
import pytest

from engine import client, launch
from engine.api import (
    EngineDead,
    FinishReason,
    InvalidRequest,
    RequestFinished,
    RequestParked,
    SamplingParams,
    SpeechChunk,
    SpeechRequest,
)
from engine.client import EngineClient
from engine.config import EngineConfig
from engine.launch import EngineThread
from engine.load import LoadedCheckpoint, build_engine_info
from engine.models.base import DecodedAudio, DecodeStage
from engine.runtime.engine import Engine
from engine.streams import EngineStream
from tests.engine.runtime.test_engine import LIMITS
from tests.engine.stream_recorder import RecordedStream, listen
from tests.fakes.checksum_model import ChecksumFamily, reference_codes

THREAD = "voicewire-engine"
TEXT = "hello there my friend"


class Switch:
    """Breaks engines from outside: the next decode step of the running one, or the making of the next."""

    def __init__(self) -> None:
        self.step_fails = False
        self.making_fails = False
        self.made: list[Engine] = []

    def guard(self, stage: DecodeStage) -> DecodeStage:
        step = stage.step

        def step_or_fail(slack_s: Mapping[int, float], wanted_frames: Mapping[int, int]) -> list[DecodedAudio]:
            if self.step_fails:
                self.step_fails = False
                raise RuntimeError("the device is gone")
            return step(slack_s, wanted_frames)

        stage.step = step_or_fail  # type: ignore[method-assign]
        return stage


@pytest.fixture
def switch() -> Switch:
    return Switch()


def make(shape: ChecksumFamily, switch: Switch, **settings: Any) -> EngineClient:
    config = EngineConfig(**(LIMITS | dict(num_blocks=200, max_running_requests=16, max_batch_size=8) | settings))

    def load() -> LoadedCheckpoint:
        model = shape.make_model()

        def make_engine() -> Engine:
            if switch.making_fails:
                raise RuntimeError("out of memory")
            switch.made.append(Engine(model, switch.guard(shape.make_stage(config)), config))
            return switch.made[-1]

        return LoadedCheckpoint(
            build_engine_info(model, shape.make_stage(config), config, normalize_text=False), make_engine, config
        )

    return EngineClient(EngineThread(load, config))


@pytest.fixture
async def engine(shape: ChecksumFamily, switch: Switch) -> AsyncIterator[EngineClient]:
    engine = make(shape, switch)
    await engine.start()
    yield engine
    await engine.aclose()


def request(number: int = 0, **fields: Any) -> SpeechRequest:
    usual = dict(text=TEXT, text_closed=True, sampling=SamplingParams(seed=number))
    return SpeechRequest(request_id=f"r{number}", **(usual | fields))


def check_says(shape: ChecksumFamily, heard: RecordedStream, spec: SpeechRequest, text: str = TEXT) -> None:
    codes, reason = reference_codes(shape.make_model(), spec, text, lambda n: min(30 + 6 * n, 60))
    assert heard.end.reason is reason
    np.testing.assert_allclose(heard.pcm, shape.pcm(codes), rtol=0, atol=shape.pcm_tolerance)


def engine_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == THREAD]


async def all_free(engine: EngineClient, *streams: EngineStream) -> None:
    for stream in streams:
        await asyncio.wait_for(stream.released(), 5)
    stats = engine.stats()
    assert (stats.blocks_free, stats.slots_free) == (stats.blocks_total, stats.slots_total)


# -- the ordinary course -----------------------------------------------------------------------------------------


async def test_many_streams_each_equal_their_solo_run(shape: ChecksumFamily, engine: EngineClient) -> None:
    specs = [request(number) for number in range(40)]
    streams = [engine.submit(spec) for spec in specs]
    for spec, heard in zip(specs, await asyncio.gather(*map(listen, streams)), strict=True):
        check_says(shape, heard, spec)
    await all_free(engine, *streams)


@pytest.mark.parametrize("is_on_engine_thread", [True, False])
async def test_commands_are_read_on_the_engines_thread_or_their_own(
    shape: ChecksumFamily, switch: Switch, is_on_engine_thread: bool
) -> None:
    engine = make(shape, switch, commands_on_engine_thread=is_on_engine_thread)
    await engine.start()
    reading = [thread for thread in threading.enumerate() if thread.name == "voicewire-gateway-read"]
    assert len(reading) == (not is_on_engine_thread)
    specs = [request(number) for number in range(10)]
    streams = [engine.submit(spec) for spec in specs]
    for spec, heard in zip(specs, await asyncio.gather(*map(listen, streams)), strict=True):
        check_says(shape, heard, spec)
    await all_free(engine, *streams)
    await engine.aclose()
    assert not any(thread.is_alive() for thread in reading)


async def test_text_during_speech_gives_equal_codes(shape: ChecksumFamily, engine: EngineClient) -> None:
    spec = request(7, text="", text_closed=False)
    stream = engine.submit(spec)
    listening = asyncio.create_task(listen(stream))
    for letter in TEXT:
        stream.push_text(letter)
        await asyncio.sleep(0)
    stream.end_input()
    check_says(shape, await listening, spec)


async def test_lead_is_kept_by_the_clock_without_a_command(shape: ChecksumFamily, engine: EngineClient) -> None:
    spec = request(1, lead_ms=0, max_frames=shape.chunk_frames + 5)
    started = asyncio.get_running_loop().time()
    heard = await listen(engine.submit(spec))
    took_s = asyncio.get_running_loop().time() - started
    assert heard.end.reason is FinishReason.LENGTH
    frame_s = engine.info.frame_samples / engine.info.sample_rate
    assert took_s > (heard.end.num_frames - shape.chunk_frames - 1) * frame_s


async def test_a_loop_without_work_takes_no_steps(engine: EngineClient) -> None:
    stream = engine.submit(request(text="abcdefghij", text_closed=False))
    async for event in stream:
        if isinstance(event, RequestParked):
            break
    await asyncio.sleep(0.05)
    before = engine.stats().num_steps
    await asyncio.sleep(0.1)
    assert engine.stats().num_steps == before
    assert engine.stats().num_parked == 1
    stream.cancel()
    await all_free(engine, stream)


async def test_prefixes_of_known_voices_are_computed_ahead(engine: EngineClient, switch: Switch) -> None:
    switch.made[0].prefetch("unknown")  # as if the model were to refuse what the client let through
    engine.prefetch_voices(["ADA", "unknown", "bo"])
    heard = await listen(engine.submit(request()))
    assert heard.end.reason is not FinishReason.ERROR
    assert len(switch.made[0].prefixes) == 2


# -- cancel and close --------------------------------------------------------------------------------------------


async def test_cancel_is_followed_by_the_end_alone_and_frees_all(engine: EngineClient) -> None:
    streams = [engine.submit(request(number, lead_ms=None)) for number in range(10)]
    events = aiter(streams[3])
    assert isinstance(await anext(events), SpeechChunk)
    for stream in streams:
        stream.cancel()
    assert [type(event) async for event in events] == [RequestFinished]
    for stream in streams[:3]:
        assert [event.reason async for event in stream if isinstance(event, RequestFinished)] == [
            FinishReason.CANCELLED
        ]
    await all_free(engine, *streams)


async def test_an_ended_stream_is_read_once(engine: EngineClient) -> None:
    stream = engine.submit(request())
    await listen(stream)
    assert [event async for event in stream] == []


async def test_close_in_mid_speech_cancels_and_leaves_no_thread(shape: ChecksumFamily, switch: Switch) -> None:
    engine = make(shape, switch)
    await engine.start()
    assert len(engine_threads()) == 1
    streams = [engine.submit(request(number, instruct="stop@58", lead_ms=0)) for number in range(3)]
    assert isinstance(await anext(aiter(streams[0])), SpeechChunk)
    await engine.aclose()
    assert not engine_threads()
    assert not engine.is_alive
    for stream in streams[1:]:
        assert (await listen(stream)).end.reason is FinishReason.CANCELLED
        await stream.released()
    with pytest.raises(EngineDead):
        engine.submit(request())
    with pytest.raises(EngineDead):
        engine.stats()
    await engine.aclose()


async def test_an_engine_may_start_again_after_its_close(shape: ChecksumFamily, switch: Switch) -> None:
    engine = make(shape, switch)
    for number in range(2):
        await engine.start()
        check_says(shape, await listen(engine.submit(request(number))), request(number))
        await engine.aclose()


# -- refusals ----------------------------------------------------------------------------------------------------


async def test_a_request_to_a_loop_that_does_not_run_is_refused(shape: ChecksumFamily, switch: Switch) -> None:
    engine = make(shape, switch)
    with pytest.raises(EngineDead, match="not running"):
        engine.submit(request())
    with pytest.raises(EngineDead, match="not started"):
        engine.info  # noqa: B018


async def check_overloaded(stream: EngineStream, message: str) -> None:
    end = (await listen(stream)).end
    assert end.error is not None
    assert (end.reason, end.error.code, end.error.message) == (FinishReason.ERROR, "overloaded", message)
    assert end.error.retry_after_ms
    await stream.released()


async def test_requests_beyond_the_limit_get_a_retry_time(shape: ChecksumFamily, switch: Switch) -> None:
    engine = make(shape, switch, max_running_requests=2, max_queued_requests=3)
    await engine.start()
    try:
        streams = [engine.submit(request(number, text_closed=False, lead_ms=2_000)) for number in range(5)]
        await check_overloaded(engine.submit(request(5, lead_ms=2_000)), "5 requests are active; the limit is 5")
        streams[0].cancel()
        await streams[0].released()
        engine.submit(request(6))
    finally:
        await engine.aclose()


async def test_above_the_ceiling_a_reply_that_speaks_is_refused_too(shape: ChecksumFamily, switch: Switch) -> None:
    engine = make(shape, switch, max_running_requests=1, max_queued_requests=1, max_queued_continuations=1)
    await engine.start()
    try:
        for number, segment in enumerate((0, 0, 1)):
            engine.submit(request(number, text_closed=False, segment=segment, lead_ms=2_000))
        refused = engine.submit(request(3, segment=2, lead_ms=2_000))
        await check_overloaded(refused, "3 requests are active; the limit is 3")
    finally:
        await engine.aclose()


async def test_closed_engine_starts_again_and_speaks(shape: ChecksumFamily, switch: Switch) -> None:
    engine = make(shape, switch)
    for number in range(2):
        await engine.start()
        assert engine.is_available
        check_says(shape, await listen(engine.submit(request(number))), request(number))
        await engine.aclose()
        assert not engine.is_alive
    assert len(switch.made) == 2
    assert engine.num_restarts == 0
    assert engine_threads() == []


async def test_text_after_its_close_is_refused_in_every_order(engine: EngineClient) -> None:
    closed_at_submit = engine.submit(request(1))
    closed_later = engine.submit(request(2, text_closed=False))
    closed_later.end_input()
    for stream in (closed_at_submit, closed_later):
        with pytest.raises(InvalidRequest, match="text"):
            stream.push_text("more")
    for stream in (closed_at_submit, closed_later):
        assert (await listen(stream)).end.reason is not FinishReason.ERROR
        stream.push_text("after the end it is ignored")


# -- death -------------------------------------------------------------------------------------------------------


async def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("waited in vain")


async def test_requests_go_on_after_their_loop_has_died(
    shape: ChecksumFamily, engine: EngineClient, switch: Switch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each gives the samples of an uninterrupted one: long ones, one that waits for text, one that was cancelled."""
    specs = [request(number, instruct="stop@58", lead_ms=0) for number in range(4)]
    streams = [engine.submit(spec) for spec in specs]
    open_text = engine.submit(request(9, text="", text_closed=False))
    open_text.push_text(TEXT[:5])
    events = aiter(streams[0])
    first = await anext(events)
    streams[3].cancel()
    switch.step_fails = switch.making_fails = True
    await wait_until(lambda: not engine.is_alive)
    with pytest.raises(EngineDead):
        engine.submit(request(5))
    later = engine.submit(request(6, segment=1))
    streams[2].cancel()
    await streams[2].released()
    open_text.push_text(TEXT[5:9])
    switch.making_fails = False
    await wait_until(lambda: engine.is_alive)
    open_text.push_text(TEXT[9:])
    open_text.end_input()

    check_says(shape, RecordedStream([first, *[event async for event in events]]), specs[0])
    check_says(shape, await listen(streams[1]), specs[1])
    check_says(shape, await listen(open_text), open_text.request)
    check_says(shape, await listen(later), later.request)
    for stream in streams[2:]:
        assert (await listen(stream)).end.reason is FinishReason.CANCELLED
    await all_free(engine, *streams, open_text, later)
    assert engine.num_restarts == 1
    assert len(engine_threads()) == 1
    assert "engine loop crashed" in caplog.text
    assert TEXT not in caplog.text


async def test_a_request_under_two_deaths_without_audio_fails_once(
    shape: ChecksumFamily, engine: EngineClient, switch: Switch
) -> None:
    waiting, answered = engine.submit(request(text="", text_closed=False)), request(1, instruct="stop@58")
    for number in (1, 2):
        switch.step_fails = True
        check_says(shape, await listen(engine.submit(answered)), answered)
        assert engine.num_restarts == number
    end = (await listen(waiting)).end
    assert (end.reason, end.error.code) == (FinishReason.ERROR, "engine_dead")
    assert "the device is gone" in end.error.message
    await all_free(engine, waiting)
    waiting.cancel()
    assert [event async for event in waiting] == []
    assert len(engine_threads()) == 1


async def test_requests_of_an_engine_that_stays_dead_fail(
    engine: EngineClient, switch: Switch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client, "RESUME_TIMEOUT_S", 0.2)
    stream = engine.submit(request(text_closed=False))
    switch.step_fails = switch.making_fails = True
    assert (await listen(stream)).end.error.code == "engine_dead"
    assert "no connection to the engine" in caplog.text
    assert not engine.is_alive
    for segment in (0, 1):
        with pytest.raises(EngineDead):
            engine.submit(request(segment=segment))


async def test_rising_again_is_tried_until_it_works(
    shape: ChecksumFamily,
    engine: EngineClient,
    switch: Switch,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(client, "RECONNECT_DELAY_S", 0.01)
    caplog.set_level(logging.DEBUG, client.__name__)
    stream = engine.submit(request(1))
    switch.step_fails = switch.making_fails = True
    await wait_until(lambda: caplog.text.count("no connection to the engine") >= 3)
    assert not engine.is_alive
    switch.making_fails = False
    check_says(shape, await listen(stream), request(1))
    assert engine.num_restarts == 1, "one death, however many attempts"
    assert len(engine_threads()) == 1


async def test_an_engine_closed_while_it_rises_again_stays_closed(engine: EngineClient, switch: Switch) -> None:
    stream = engine.submit(request(text_closed=False))
    switch.step_fails = switch.making_fails = True
    await wait_until(lambda: not engine.is_alive)
    await engine.aclose()
    assert (await listen(stream)).end.reason is FinishReason.CANCELLED
    await asyncio.sleep(0.05)
    assert not engine.is_alive
    assert not engine_threads()


async def test_a_first_start_that_fails_is_the_callers_to_handle(shape: ChecksumFamily, switch: Switch) -> None:
    switch.making_fails = True
    engine = make(shape, switch)
    with pytest.raises(RuntimeError, match="out of memory"):
        await engine.start()
    assert not engine.is_alive
    await engine.aclose()


@pytest.mark.parametrize(
    ("device", "settings", "expected"),
    [
        ("cpu", {}, launch.CPU_NICENESS),
        ("cuda:0", {}, 0),
        ("cpu", {"process_nice": 0}, 0),
        ("cuda", {"process_nice": 9}, 9),
    ],
)
def test_engine_on_a_cpu_has_lower_priority_than_the_server(
    device: str, settings: dict[str, int], expected: int
) -> None:
    engine = launch.create_engine(device=device, process=False, **settings)
    assert isinstance(engine, EngineClient)
    assert isinstance(engine._endpoint, EngineThread)
    assert engine._endpoint.config.process_nice == expected
