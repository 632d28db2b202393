"""A session gives its settings to its responses, keeps to its limits, and has one way out."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest

from engine.api import ClonedVoice, InvalidRequest, SamplingParams, UnknownLanguage, UnknownVoice
from sessions.config import AudioFormat, Encoding, RegistryLimits, SessionLimits
from sessions.errors import DuplicateResponse, LimitExceeded, SessionClosed, UnknownResponse, UnsupportedFormat
from sessions.events import ResponseStatus
from sessions.registry import SessionRegistry
from tests.sessions.conftest import BURST, PACED, RecordingEngine, assert_all_free, read, reading_task

TEXT = "One two three four five six. "
pytestmark = pytest.mark.virtual_time


async def test_settings_reach_the_engine(registry: SessionRegistry, engine: RecordingEngine):
    session = registry.create(settings=replace(PACED, voice="ben", language="de", instruct="Softly."))
    await read(session.create_response(text="Hallo.", text_closed=True))
    session.update(replace(session.settings, voice="ada", language="en", lead_ms=100))
    await read(session.create_response(text="Hello.", text_closed=True))
    await read(session.create_response(text="Hello.", text_closed=True, settings=replace(BURST, voice="ben")))
    told = [(one.voice, one.language, one.instruct, one.lead_ms) for one in engine.requests]
    assert told == [
        ("ben", "de", "Softly.", 2_000),
        ("ada", "en", "Softly.", 500),
        ("ben", "auto", "", None),
    ]
    assert not engine.prefetched
    session.create_response(settings=replace(BURST, voice="ben"))
    assert engine.prefetched == ["ben"]  # its text is still to come


@pytest.mark.parametrize(
    ("change", "error", "param", "words"),
    [
        ({"voice": "eve"}, UnknownVoice, "voice", "'eve'"),
        ({"language": "xx"}, UnknownLanguage, "language", "'xx'"),
        ({"instruct": "a" * 1_001}, LimitExceeded, "instruct", "max_instruct_chars is 1000"),
        ({"lead_ms": -1}, LimitExceeded, "lead_ms", "0 to 60000"),
        ({"lead_ms": 60_001}, LimitExceeded, "lead_ms", "60001"),
        ({"format": AudioFormat(sample_rate=22_050)}, UnsupportedFormat, "sample_rate", "22050"),
        ({"format": AudioFormat(bitrate=1)}, UnsupportedFormat, "bitrate", "6000"),
        ({"format": AudioFormat(complexity=11)}, UnsupportedFormat, "complexity", "11"),
        ({"format": AudioFormat(encoding=Encoding.MULAW, sample_rate=9_000)}, UnsupportedFormat, "sample_rate", "8000"),
        ({"format": AudioFormat(encoding=Encoding.MP3, bitrate=7)}, UnsupportedFormat, "bitrate", "8000 and 160000"),
        (
            {"format": AudioFormat(encoding=Encoding.PCM_S16LE, sample_rate=1)},
            UnsupportedFormat,
            "sample_rate",
            "8000, 11025",
        ),
        ({"sampling": SamplingParams(temperature=2.5)}, InvalidRequest, "temperature", r"0\.0 to 2\.0, is 2\.5"),
        ({"sampling": SamplingParams(top_p=float("nan"))}, InvalidRequest, "top_p", "is nan"),
        ({"sampling": SamplingParams(top_k=-1)}, InvalidRequest, "top_k", "0 to 100000, is -1"),
        ({"sampling": SamplingParams(seed=-5)}, InvalidRequest, "seed", "is -5"),
        ({"sampling": SamplingParams(repetition_window=0)}, InvalidRequest, "repetition_window", "1 to 100000, is 0"),
        ({"speed": 0.2}, InvalidRequest, "speed", r"0\.25 to 4, is 0\.2"),
        ({"speed": float("nan")}, InvalidRequest, "speed", "is nan"),
        ({"max_frames": 0}, InvalidRequest, "max_frames", "1 to 4294967295, is 0"),
        ({"chunk_frames": (1, 3)}, InvalidRequest, "chunk_frames", "holds 3"),
        ({"chunk_frames": (1,) * 17}, InvalidRequest, "chunk_frames", "17 entries, at most 16"),
        ({"clone": ClonedVoice(embedding=b"")}, InvalidRequest, "voice", "does not clone voices"),
    ],
)
async def test_bad_settings_are_refused_and_change_nothing(
    registry: SessionRegistry, change: dict, error: type[Exception], param: str, words: str
):
    session = registry.create(settings=PACED)
    bad = replace(PACED, **change)
    for attempt in (
        lambda: registry.create(settings=bad),
        lambda: session.update(bad),
        lambda: session.create_response(settings=bad),
    ):
        with pytest.raises(error, match=words) as refused:
            attempt()
        assert refused.value.param == param
    assert session.settings == PACED
    assert registry.statistics().num_sessions == 1
    assert registry.statistics().num_active_responses == 0


async def test_ids_are_given_kept_apart_and_forgotten(registry: SessionRegistry):
    session = registry.create(settings=BURST)
    limit = SessionLimits().max_retained_responses
    response = session.create_response("mine")
    assert session.response("mine") is response
    with pytest.raises(DuplicateResponse, match="mine"):
        session.create_response("mine")
    response.cancel()
    with pytest.raises(DuplicateResponse, match="mine"):
        session.create_response("mine")
    named = [session.create_response() for _ in range(limit)]
    assert len({one.response_id for one in named}) == limit
    for one in named:
        one.cancel()
    with pytest.raises(UnknownResponse, match="mine"):
        session.response("mine")
    session.create_response("mine")


async def test_active_responses_are_limited_by_session_key_and_server(engine: RecordingEngine):
    limits = RegistryLimits(
        max_active_responses=4,
        max_active_responses_per_key=3,
        session=SessionLimits(max_active_responses_per_session=2),
        encoder_threads=0,
    )
    registry = SessionRegistry(engine, limits)
    first, second, other = registry.create("key"), registry.create("key"), registry.create("other")
    responses = [first.create_response(text=TEXT), first.create_response(text=TEXT)]
    with pytest.raises(LimitExceeded, match="of a session is 2") as refused:
        first.create_response(text=TEXT)
    assert refused.value.retry_after_ms is None
    responses.append(second.create_response(text=TEXT))
    with pytest.raises(LimitExceeded, match="per_key is 3") as refused:
        second.create_response(text=TEXT)
    assert refused.value.retry_after_ms == 1_000
    other.create_response(text=TEXT)
    with pytest.raises(LimitExceeded, match="max_active_responses is 4"):
        other.create_response(text=TEXT)
    responses[0].cancel()
    second.create_response(text=TEXT)
    assert registry.statistics().num_active_responses == 4
    await registry.aclose()
    assert registry.statistics().num_active_responses == 0


async def test_a_key_may_have_a_limit_of_its_own_and_no_key_has_none(registry: SessionRegistry):
    session = registry.create("key", max_active_responses=1)
    session.create_response(text=TEXT)
    with pytest.raises(LimitExceeded, match="per_key is 1"):
        session.create_response(text=TEXT)
    for _ in range(10):
        registry.create().create_response(text=TEXT)


async def test_response_takes_a_place_with_its_first_text(engine: RecordingEngine):
    registry = SessionRegistry(engine, RegistryLimits(max_active_responses=1, encoder_threads=0))
    silent = [registry.create().create_response(text=" ") for _ in range(3)]
    assert registry.statistics().num_active_responses == 0
    speaking = registry.create(settings=PACED).create_response()
    _, task = reading_task(speaking)
    speaking.push_text(TEXT)
    speaking.push_text(TEXT)
    speaking.end_input()
    assert registry.statistics().num_active_responses == 1
    silent[0].push_text(TEXT)
    refused, _ = reading_task(silent[0])
    await asyncio.sleep(1)
    error = refused.done.error
    assert error is not None
    assert (error.code, error.retry_after_ms) == ("limit_exceeded", 1_000)
    await task
    silent[1].push_text(TEXT)
    assert registry.statistics().num_active_responses == 1
    await registry.aclose()
    assert registry.statistics().num_active_responses == 0


async def test_detach_cancels_all_and_refuses_more(registry: SessionRegistry, engine: RecordingEngine):
    session = registry.create(settings=PACED)
    tasks = [reading_task(session.create_response(text="A few words. " * 9))[1] for _ in range(3)]
    await asyncio.sleep(1)
    session.detach()
    session.detach()
    assert session.detached.is_set()
    assert registry.find(session.session_id) is None
    with pytest.raises(SessionClosed):
        session.create_response()
    await session.aclose()
    assert_all_free(engine)
    for task in tasks:
        assert (await task).done.status is ResponseStatus.CANCELLED


async def test_idle_sessions_expire_and_busy_ones_do_not(engine: RecordingEngine):
    limits = RegistryLimits(idle_timeout_s=30, encoder_threads=0, session=SessionLimits(text_timeout_s=1_000))
    registry = SessionRegistry(engine, limits)
    looking_after = asyncio.create_task(registry.run())
    idle, touched, busy = (registry.create(settings=PACED) for _ in range(3))
    response = busy.create_response(text="Only a few words")
    reading_task(response)
    for _ in range(50):
        await asyncio.sleep(1)
        touched.touch()
    assert [session.detached.is_set() for session in (idle, touched, busy)] == [True, False, False]
    response.end_input()
    await asyncio.sleep(60)
    assert busy.detached.is_set()
    assert registry.statistics().num_sessions == 0
    looking_after.cancel()
    await registry.aclose()


async def test_sessions_are_limited_found_and_counted(engine: RecordingEngine):
    registry = SessionRegistry(engine, RegistryLimits(max_sessions=2, encoder_threads=0))
    first = registry.create()
    async with aclosing(registry.create()) as second:
        with pytest.raises(LimitExceeded, match="max_sessions is 2") as refused:
            registry.create()
        assert refused.value.retry_after_ms == 1_000
        assert registry.find(second.session_id) is second
    assert registry.find(first.session_id) is first
    registry.create()
    assert registry.statistics().num_sessions == 2
    await registry.close_all()
    assert registry.statistics().num_sessions == 0


async def test_a_thousand_idle_sessions_hold_no_task_and_no_timer(registry: SessionRegistry):
    loop = asyncio.get_running_loop()
    num_tasks, num_timers = len(asyncio.all_tasks()), len(loop._scheduled)  # type: ignore[attr-defined]
    sessions = [registry.create() for _ in range(1_000)]
    responses = [session.create_response() for session in sessions[:100]]
    assert len(asyncio.all_tasks()) == num_tasks
    assert len(loop._scheduled) == num_timers  # type: ignore[attr-defined]
    assert len(responses) == 100
