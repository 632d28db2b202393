"""Whatever a client, its reader and the engine do, in whatever order: each response ends in exactly one terminal event,
its audio abuts, nothing comes after a cancel, and everything is free at the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api import FinishReason
from sessions.clock import now_s
from sessions.config import AudioFormat, Encoding, RegistryLimits, SessionLimits, SpeechSettings
from sessions.errors import SessionError
from sessions.events import ResponseStatus
from sessions.registry import SessionRegistry
from sessions.response import Response
from sessions.session import Session
from tests.fakes.engine_script import FakeScript
from tests.fakes.virtual_time import VirtualTimeLoop
from tests.sessions.conftest import PACED, RecordingEngine, assert_all_free
from tests.sessions.response_reader import ResponseRecord, read

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
    provisional_tail_samples=st.sampled_from([0, 480]),
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
@settings(max_examples=100)
def test_any_sequence(steps: list[tuple[object, ...]]):
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(live(steps))
