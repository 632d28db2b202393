"""Whatever goes wrong, and in whatever order: one terminal event, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api import FinishReason, SpeechRequest
from engine.errors import OVERLOAD_RETRY_MS
from engine.runtime.admission import QueueLimits, RequestCounts
from sessions.audio_track import AudioTrack
from sessions.clock import now_s
from sessions.config import AudioFormat, Encoding, RegistryLimits, SessionLimits, SpeechSettings
from sessions.errors import SessionError, TextInputClosed
from sessions.events import ResponseFinished, ResponseStatus
from sessions.registry import SessionRegistry
from sessions.response import Response
from sessions.session import Session
from tests.fakes.engine_script import FakeScript
from tests.fakes.engine_stream import FakeSpeechStream
from tests.fakes.virtual_time import VirtualTimeLoop
from tests.sessions.conftest import (
    BURST,
    LIMITS,
    PACED,
    PCM,
    RecordingEngine,
    ResponseRecord,
    assert_all_free,
    read,
    reading_task,
)

pytestmark = pytest.mark.virtual_time

LONG = "This is a sentence of middling length that says nothing much at all. " * 8


@pytest.mark.parametrize(("frame", "num_before"), [(0, 0), (1, 0), (30, 0), (0, 1), (7, 2)])
async def test_an_error_of_the_engine_fails_the_response(
    registry: SessionRegistry, engine: RecordingEngine, caplog: pytest.LogCaptureFixture, frame: int, num_before: int
):
    session = registry.create(settings=PACED)
    other = session.create_response(text=LONG[:70], text_closed=True)
    _, other_task = reading_task(other)
    engine.script_next(*[FakeScript()] * num_before, FakeScript(fail_at_frame=frame))
    response = session.create_response(text=LONG, text_closed=True)
    done = (await read(response)).done
    assert done.status is ResponseStatus.FAILED
    assert done.error is not None
    assert (done.error.code, done.error.retryable) == ("engine_error", True)
    await response.released()
    assert (await other_task).done.status is ResponseStatus.COMPLETED
    assert caplog.records == [], "an error of the engine is no internal error"


async def test_dead_engine_fails_every_response_at_once(registry: SessionRegistry, engine: RecordingEngine):
    session = registry.create(settings=PACED)
    tasks = [reading_task(session.create_response(text=LONG, text_closed=True))[1] for _ in range(3)]
    await asyncio.sleep(2)
    engine.crash()
    await asyncio.sleep(0.01)
    assert all(task.done() for task in tasks)
    late = await read(session.create_response(text=LONG, text_closed=True))
    for reading in [*(task.result() for task in tasks), late]:
        assert reading.done.status is ResponseStatus.FAILED
        assert reading.done.error is not None
        assert reading.done.error.code == "engine_dead"
    await engine.start()
    assert (await read(session.create_response(text="Back.", text_closed=True))).done.status == "completed"


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.LOOP, FinishReason.SILENCE])
async def test_segment_cut_by_a_guard_is_ok(registry: SessionRegistry, engine: RecordingEngine, reason: FinishReason):
    engine.script_next(FakeScript(end_at_frame=10, end_reason=reason))
    response = registry.create(settings=PACED).create_response(text=LONG, text_closed=True)
    assert (await read(response)).done.status is ResponseStatus.COMPLETED
    assert len(engine.texts) == 4


async def test_no_room_at_the_start_fails_with_a_retry_time(
    registry: SessionRegistry, engine: RecordingEngine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(engine, "_max_waiting", -engine._num_slots)
    response = registry.create(settings=PACED).create_response(text=LONG, text_closed=True)
    done = (await read(response)).done
    assert done.error is not None
    assert (done.error.code, done.error.retry_after_ms) == ("overloaded", 500)


@pytest.mark.parametrize("settings", [PACED, BURST], ids=["paced", "burst"])
async def test_no_room_in_the_middle_is_waited_out(
    registry: SessionRegistry, engine: RecordingEngine, monkeypatch: pytest.MonkeyPatch, settings: SpeechSettings
):
    session = registry.create(settings=settings)
    _reading, task = reading_task(session.create_response(text=LONG, text_closed=True))
    await asyncio.sleep(0.1)
    monkeypatch.setattr(engine, "_max_waiting", -engine._num_slots)
    assert (await task).done.status is ResponseStatus.COMPLETED
    assert [request.segment for request in engine.requests] == [0, 1, 2, 3]
    refused = session.create_response(text=LONG, text_closed=True)
    assert (await read(refused)).done.status is ResponseStatus.FAILED


@pytest.mark.parametrize("settings", [PACED, BURST], ids=["paced", "burst"])
async def test_response_above_the_ceiling_fails_with_a_retry_time(
    registry: SessionRegistry, engine: RecordingEngine, monkeypatch: pytest.MonkeyPatch, settings: SpeechSettings
):
    room, counts = QueueLimits(new=2, continuing=0, for_burst=2, for_burst_of_group=2), RequestCounts()
    submit = engine.submit

    def submit_where_there_is_room(request: SpeechRequest, wake: Callable[[], None] | None = None) -> FakeSpeechStream:
        room.check(counts, request)
        return submit(request, wake)

    monkeypatch.setattr(engine, "submit", submit_where_there_is_room)
    response = registry.create(settings=settings).create_response(text=LONG, text_closed=True)
    reading = await read(response)
    assert reading.num_samples > 0
    assert reading.done.status is ResponseStatus.FAILED
    assert reading.done.error is not None
    assert (reading.done.error.code, reading.done.error.retry_after_ms) == ("overloaded", OVERLOAD_RETRY_MS)


async def test_unexpected_error_of_the_engine_ends_the_response(
    registry: SessionRegistry,
    engine: RecordingEngine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    monkeypatch.setattr(engine, "submit", None)
    response = registry.create(settings=PACED).create_response(text=LONG, text_closed=True)
    error = (await read(response)).done.error
    assert error is not None
    assert (error.code, error.message) == ("internal_error", "internal error")
    assert [record.getMessage() for record in caplog.records] == ["internal error in response"]


async def test_a_burst_asks_for_one_place_until_it_is_heard(registry: SessionRegistry, engine: RecordingEngine):
    """Its later segments are refused by no crowd, so none may wait in the engine while it is not spoken."""
    engine.script_next(FakeScript(first_chunk_s=2.0))
    _reading, task = reading_task(registry.create(settings=BURST).create_response(text=LONG, text_closed=True))
    await asyncio.sleep(1.9)
    assert len(engine.ever) == 1
    await asyncio.sleep(0.15)
    assert [stream.num_frames > 0 for stream in engine.ever] == [True, False], "the second is made beside the first"
    assert (await task).done.status is ResponseStatus.COMPLETED
    assert [request.segment for request in engine.requests] == [0, 1, 2, 3]


async def test_unspeakable_start_takes_no_segment_number(registry: SessionRegistry, engine: RecordingEngine):
    response = registry.create(settings=PACED).create_response(text="... !!!")
    response.flush()
    response.push_text(LONG)
    response.end_input()
    await read(response)
    assert [request.segment for request in engine.requests] == [0, 1, 2, 3]


async def test_internal_error_is_reported_without_its_message(
    registry: SessionRegistry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    response = registry.create(settings=PACED).create_response()
    monkeypatch.setattr(AudioTrack, "push", None)
    response.push_text(LONG)
    done = (await read(response)).done
    assert done.error is not None
    assert (done.error.code, done.error.message) == ("internal_error", "internal error")
    assert "internal error in response" in caplog.text
    assert LONG[:20] not in caplog.text


@pytest.fixture
def impatient(engine: RecordingEngine) -> SessionRegistry:
    limits = SessionLimits(reader_timeout_s=3, playback_timeout_s=5, text_timeout_s=7, engine_timeout_s=9)
    return SessionRegistry(engine, RegistryLimits(encoder_threads=0, session=limits))


async def ending_of(registry: SessionRegistry, response: Response) -> tuple[ResponseFinished, float]:
    """Its terminal event, and when it came, with the registry checking its limits."""
    checking = asyncio.create_task(registry.run())
    await response._ended.wait()
    checking.cancel()
    ended_s = now_s()
    done = (await read(response)).done
    await response.released()
    return done, ended_s


async def test_unread_audio_ends_the_response(impatient: SessionRegistry):
    response = impatient.create(settings=PACED).create_response(text=LONG, text_closed=True)
    await anext(response)
    done, ended_s = await ending_of(impatient, response)
    assert done.error is not None
    assert done.error.code == "slow_reader"
    assert 3 < ended_s < 5.5


async def test_slow_reader_that_goes_on_reading_is_served(impatient: SessionRegistry):
    checking = asyncio.create_task(impatient.run())
    response = impatient.create(settings=PACED).create_response(text="Just a few words.", text_closed=True)
    async for _ in response:
        await asyncio.sleep(2)
    checking.cancel()
    assert response._terminal is not None
    assert response._terminal.status is ResponseStatus.COMPLETED


async def test_playback_held_too_long_ends_the_response(impatient: SessionRegistry):
    response = impatient.create(settings=PACED).create_response(text=LONG, text_closed=True)
    _, task = reading_task(response)
    checking = asyncio.create_task(impatient.run())
    while not response.is_done:
        await asyncio.sleep(0.1)
        response.report_playback(500)
    checking.cancel()
    error = (await task).done.error
    assert error is not None
    assert error.code == "slow_reader"
    assert "playback_timeout_s" in error.message


@pytest.mark.parametrize(
    ("text", "text_closed", "script", "code"),
    [
        ("", False, FakeScript(), "text_timeout"),
        ("Hello", False, FakeScript(), "text_timeout"),
        ("Hello there ", False, FakeScript(), "text_timeout"),
        ("Sure, one ", False, FakeScript(first_chunk_s=1e6), "text_timeout"),
        ("Sure, one ", True, FakeScript(first_chunk_s=1e6), "engine_timeout"),
        (LONG, True, FakeScript(stalls_s={5: 1e6}), "engine_timeout"),
    ],
)
async def test_silent_writer_or_engine_ends_the_response(
    impatient: SessionRegistry, engine: RecordingEngine, text: str, text_closed: bool, script: FakeScript, code: str
):
    engine.script_next(script)
    response = impatient.create(settings=PACED).create_response(text=text, text_closed=text_closed)
    reading, task = reading_task(response)
    checking = asyncio.create_task(impatient.run())
    error = (await task).done.error
    checking.cancel()
    assert error is not None
    assert (error.code, error.retryable) == (code, code == "engine_timeout")
    if not reading.audio:
        assert (7 if code == "text_timeout" else 9) < now_s() < 14


@types.coroutine
def interrupted(coroutine: Coroutine[Any, Any, Any], at: int, hits: list[int]) -> Generator[Any, Any, Any]:
    """Run a coroutine and cancel it at its n-th suspension."""
    num_waits = 0
    error: BaseException | None = None
    while True:
        try:
            waited_for = coroutine.send(None) if error is None else coroutine.throw(error)
        except StopIteration as end:
            return end.value
        num_waits += 1
        if num_waits == at + 1:
            hits.append(at)
            error = asyncio.CancelledError()
            continue
        try:
            yield waited_for
            error = None
        except BaseException as thrown:
            error = thrown


def interrupt_tasks(name: str, at: int) -> list[int]:
    """From now on, cancel tasks of such a coroutine at their n-th suspension. Returns the list of hits."""
    hits: list[int] = []

    async def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
        return await interrupted(coroutine, at, hits)

    def make_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        if coroutine.__qualname__.endswith(name):
            coroutine = run(coroutine)
        return asyncio.Task(coroutine, loop=loop, **options)

    asyncio.get_running_loop().set_task_factory(make_task)
    return hits


async def converse(session: Session, audio: AudioFormat = PCM) -> None:
    """Something of everything."""
    response = session.create_response(text="One two three, ")
    _, task = reading_task(response)
    await asyncio.sleep(0.3)
    with contextlib.suppress(TextInputClosed):
        response.push_text("four five six seven. ")
        response.flush()
    other = session.create_response(text=LONG[:70], text_closed=True, settings=replace(BURST, format=audio))
    _, other_task = reading_task(other)
    await asyncio.sleep(0.5)
    response.cancel(100)
    await asyncio.wait([task, other_task])


SUSPENSIONS = 45


@pytest.mark.parametrize("num_threads", [0, 1])
async def test_task_cancelled_at_any_await_leaves_nothing(engine: RecordingEngine, num_threads: int):
    registry = SessionRegistry(engine, RegistryLimits(encoder_threads=num_threads))
    num_hits = 0
    for at in range(SUSPENSIONS):
        hits = interrupt_tasks("Response._run", at)
        session = registry.create(settings=PACED)
        await converse(session, AudioFormat())
        asyncio.get_running_loop().set_task_factory(None)
        assert session.num_active_responses == 0
        await session.aclose()
        assert_all_free(engine)
        num_hits += bool(hits)
    assert num_hits > 20
    await registry.aclose()


@pytest.mark.parametrize("at", [0, 1, 5])
async def test_response_ends_when_its_task_is_cancelled(registry: SessionRegistry, engine: RecordingEngine, at: int):
    hits = interrupt_tasks("Response._run", at)
    response = registry.create(settings=PACED).create_response(text=LONG)
    _, task = reading_task(response)
    await asyncio.sleep(1)
    assert hits
    assert task.done()
    assert task.result().done.status is ResponseStatus.CANCELLED
    assert_all_free(engine)


async def test_session_closed_at_any_await_leaves_nothing(registry: SessionRegistry, engine: RecordingEngine):
    num_hits = 0
    for at in range(SUSPENSIONS):
        hits = interrupt_tasks("live_with_it", at)
        session = registry.create(settings=PACED)

        async def live_with_it(session: Session = session) -> None:
            async with contextlib.aclosing(session):
                reading = session.create_response(text=LONG)
                async for _ in reading:
                    if reading._ring.num_messages_sent == 5:
                        reading.cancel()
                await converse(session)

        client = asyncio.create_task(live_with_it())
        await asyncio.wait([client])
        asyncio.get_running_loop().set_task_factory(None)
        await session.aclose()
        assert_all_free(engine)
        assert registry.statistics().num_active_responses == 0
        num_hits += bool(hits)
        await asyncio.sleep(0.1)
    assert 5 < num_hits < SUSPENSIONS


@pytest.mark.parametrize("moment_ms", range(0, 1_300, 50))
async def test_vanished_client_leaves_nothing(registry: SessionRegistry, engine: RecordingEngine, moment_ms: int):
    session = registry.create(settings=PACED)
    conversation = asyncio.create_task(converse(session))
    await asyncio.sleep(moment_ms / 1000)
    session.detach()
    assert session.num_active_responses == 0
    await session.aclose()
    assert_all_free(engine)
    conversation.cancel()
    await asyncio.wait([conversation])


def test_limits_of_tests_are_the_defaults_but_for_threads():
    assert replace(LIMITS, encoder_threads=1) == RegistryLimits()
    assert SpeechSettings(format=PACED.format) == PACED


TEXTS = st.sampled_from(
    ["", " ", "🙂 ", "Hello", " world, ", "one two three four five six ", "Yes. ", "A sentence. " * 15]
)
SETTINGS = st.builds(
    replace,
    st.just(PACED),
    lead_ms=st.sampled_from([None, 0, 40, 2_000]),
    avoid_dead_air=st.booleans(),
    normalize_text=st.booleans(),
    format=st.sampled_from(
        [PACED.format, AudioFormat(encoding=Encoding.MULAW, sample_rate=8_000), AudioFormat(complexity=0)]
    ),
)
SCRIPTS = st.builds(
    FakeScript,
    real_time_factor=st.sampled_from([0.1, 1.5]),
    fail_at_frame=st.sampled_from([None, None, None, 0, 9]),
    end_at_frame=st.sampled_from([None, None, 4]),
    end_reason=st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]),
    stalls_s=st.sampled_from([{}, {5: 3.0}, {1: 100.0}]),
)
WHICH = st.integers(0, 3)
PLAYED_MS = st.sampled_from([None, -1.0, 0.0, 500.0, 1e9])
CREATE = st.tuples(st.just("create"), TEXTS, st.booleans(), SETTINGS)
PUSH = st.tuples(st.just("push"), WHICH, TEXTS)
WAIT = st.tuples(st.just("wait"), st.sampled_from([0.0, 0.02, 0.3, 1.0, 2.0]))
STEP = st.one_of(
    CREATE,
    PUSH,
    PUSH,
    PUSH,
    WAIT,
    WAIT,
    WAIT,
    st.tuples(st.just("flush"), WHICH),
    st.tuples(st.just("end"), WHICH),
    st.tuples(st.just("cancel"), WHICH, PLAYED_MS),
    st.tuples(st.just("report"), WHICH, PLAYED_MS),
    st.tuples(st.just("heard"), WHICH, PLAYED_MS),
    st.tuples(st.just("stop_reading"), WHICH),
    st.tuples(st.just("script"), SCRIPTS),
)
CATASTROPHE = st.tuples(st.sampled_from(["engine_dies", "session_ends"]))
STEPS = st.builds(
    lambda first, steps, late: [first, *steps, *late],
    CREATE,
    st.lists(STEP, min_size=10, max_size=25),
    st.lists(st.one_of(CATASTROPHE, STEP), max_size=5),
)


@dataclass
class Client:
    registry: SessionRegistry
    engine: RecordingEngine
    session: Session
    responses: list[Response] = field(default_factory=list)
    readings: list[ResponseRecord] = field(default_factory=list)
    readers: list[asyncio.Task[ResponseRecord]] = field(default_factory=list)
    num_audio_at_cancel: dict[int, int] = field(default_factory=dict)

    async def do(self, name: str, *arguments: object) -> None:
        action: Callable[..., Awaitable[None]] = getattr(self, name)
        with contextlib.suppress(SessionError, IndexError):
            await action(*arguments)

    async def create(self, text: str, text_closed: bool, how: SpeechSettings) -> None:
        response = self.session.create_response(settings=how, text=text, text_closed=text_closed)
        reading = ResponseRecord()
        self.responses.append(response)
        self.readings.append(reading)
        self.readers.append(asyncio.create_task(read(response, reading)))

    async def push(self, which: int, text: str) -> None:
        self.responses[which].push_text(text)

    async def flush(self, which: int) -> None:
        self.responses[which].flush()

    async def end(self, which: int) -> None:
        self.responses[which].end_input()

    async def cancel(self, which: int, played_ms: float | None) -> None:
        self.responses[which].cancel(played_ms)
        self.num_audio_at_cancel.setdefault(which, len(self.readings[which].audio))

    async def report(self, which: int, played_ms: float | None) -> None:
        self.responses[which].report_playback(played_ms or 0.0)

    async def heard(self, which: int, played_ms: float | None) -> None:
        self.responses[which].heard(played_ms)

    async def stop_reading(self, which: int) -> None:
        self.readers[which].cancel()

    async def wait(self, duration_s: float) -> None:
        await asyncio.sleep(duration_s)

    async def script(self, script: FakeScript) -> None:
        self.engine.script_next(script)

    async def engine_dies(self) -> None:
        self.engine.crash()
        await self.engine.start()

    async def session_ends(self) -> None:
        self.session.detach()
        self.session = self.registry.create()

    async def check(self, which: int) -> None:
        response, reading, reader = self.responses[which], self.readings[which], self.readers[which]
        if reader.cancelled():
            await read(response, reading)
        await reader if not reader.cancelled() else None
        assert response.is_released
        done = reading.done
        assert done.audio_samples <= reading.num_samples
        if which in self.num_audio_at_cancel:
            assert len(reading.audio) == self.num_audio_at_cancel[which]
        if done.status is ResponseStatus.COMPLETED:
            assert done.heard.remaining == ""
        assert (done.error is not None) == (done.status is ResponseStatus.FAILED)


async def live(steps: list[tuple[object, ...]]) -> None:
    engine = RecordingEngine()
    await engine.start()
    limits = RegistryLimits(
        encoder_threads=0, session=SessionLimits(text_timeout_s=20, max_active_responses_per_session=3)
    )
    registry = SessionRegistry(engine, limits)
    looking_after = asyncio.create_task(registry.run())
    client = Client(registry, engine, registry.create())
    for step in steps:
        await client.do(*step)  # type: ignore[arg-type]
    await asyncio.sleep(0)
    while any(not response.is_done for response in client.responses) and now_s() < 1_000:
        await asyncio.sleep(1)
    assert registry.statistics().num_active_responses == 0
    await registry.aclose()
    for response in client.responses:
        await response.released()
    assert_all_free(engine)
    for which in range(len(client.responses)):
        await client.check(which)
    looking_after.cancel()
    await asyncio.wait([looking_after])
    await engine.aclose()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@given(STEPS)
@settings(max_examples=50)
def test_any_sequence(steps: list[tuple[object, ...]]):
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(live(steps))
