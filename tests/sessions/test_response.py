"""A response speaks what it is given, in order, at its speed and without a seam, and ends exactly once."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from engine.api import EngineOverloaded, ResumePoint, TextLayout
from sessions.alignment.uniform_aligner import UniformAligner
from sessions.audio.opus import OpusEncoder
from sessions.audio.pcm import pcm_to_s16le
from sessions.audio.segment_joiner import crossfade_join
from sessions.audio_track import JOIN_MS
from sessions.checkpoint import Replay, SpokenSegment
from sessions.config import AudioFormat, Encoding, Markup, SessionLimits, SpeechSettings
from sessions.errors import TextInputClosed
from sessions.events import FlushCompleted, ResponseAudio, ResponseStatus
from sessions.registry import SessionRegistry
from sessions.session import Session
from tests.fakes.engine import SAMPLE_RATE, FakeSpeechEngine
from tests.fakes.engine_script import FakeScript
from tests.fakes.engine_stream import tone
from tests.sessions.conftest import BURST, LIMITS, PACED, PCM, RecordingEngine, assert_all_free, read, reading_task

pytestmark = pytest.mark.virtual_time
SENTENCE = "This is a sentence of middling length that says nothing much at all. "
LONG = SENTENCE * 8
# Of the fake engine.
STEP_S = 0.02
FORMATS = [
    AudioFormat(),
    AudioFormat(sample_rate=48_000),
    AudioFormat(encoding=Encoding.PCM_S16LE),
    AudioFormat(encoding=Encoding.PCM_S16LE, sample_rate=44_100),
    AudioFormat(encoding=Encoding.MULAW, sample_rate=8_000),
    AudioFormat(encoding=Encoding.ALAW, sample_rate=8_000),
    AudioFormat(encoding=Encoding.PCM_F32LE, sample_rate=22_050),
    AudioFormat(encoding=Encoding.WAV),
    AudioFormat(encoding=Encoding.MP3, sample_rate=22_050),
    AudioFormat(encoding=Encoding.MP3, sample_rate=44_100, bitrate=128_000),
    AudioFormat(encoding=Encoding.AAC, sample_rate=44_100, bitrate=64_000),
    AudioFormat(encoding=Encoding.FLAC),
    AudioFormat(encoding=Encoding.OGG_OPUS, sample_rate=48_000),
]


async def test_several_segments_come_out_as_one_signal(registry: SessionRegistry, engine: RecordingEngine):
    response = registry.create(settings=BURST).create_response(text=LONG, text_closed=True)
    reading = await read(response)
    expected = np.zeros(0, np.float32)
    for request in engine.requests:
        num_frames = int(len(request.text) * 0.75) + 1  # 60 ms a character, 80 ms a frame, and one to finish on
        expected = crossfade_join(expected, tone(request, 0, num_frames * 1920), SAMPLE_RATE * JOIN_MS // 1000)
    assert len(engine.requests) == 4
    assert reading.data == pcm_to_s16le(expected)
    assert " ".join(request.text for request in engine.requests).split() == LONG.split()


@pytest.mark.parametrize("audio", FORMATS, ids=lambda audio: f"{audio.encoding}-{audio.sample_rate}")
async def test_every_format_carries_the_whole_speech(registry: SessionRegistry, audio: AudioFormat):
    session = registry.create(settings=SpeechSettings(format=audio, lead_ms=None))
    response = session.create_response(text=SENTENCE * 2, text_closed=True)
    done = (await read(response)).done
    assert done.status is ResponseStatus.COMPLETED
    assert done.audio_ms == pytest.approx(8240, abs=1)
    assert done.audio_samples == pytest.approx(done.audio_ms * audio.sample_rate / 1000)
    assert done.heard.text == SENTENCE * 2


@pytest.mark.parametrize("settings", [BURST, PACED], ids=["burst", "paced"])
@pytest.mark.parametrize("normalize", [False, True])
async def test_text_fed_by_the_character_sounds_like_text_fed_at_once(
    registry: SessionRegistry, engine: RecordingEngine, settings: SpeechSettings, normalize: bool
):
    settings = replace(settings, layout=TextLayout.STREAMING, avoid_dead_air=False, normalize_text=normalize)
    text = "On May 3rd, 2024 I paid $1,250.  It was\nworth it, really!\n\nWas it? " + LONG
    session = registry.create(settings=settings)
    at_once = await read(session.create_response(text=text, text_closed=True))
    texts = [text.rstrip() for text in engine.texts]
    response = session.create_response()
    reading, task = reading_task(response)
    for character in text:
        response.push_text(character)
        await asyncio.sleep(0.001)
    response.end_input()
    await task
    assert reading.data == at_once.data
    assert reading.done.heard == at_once.done.heard
    assert [text.rstrip() for text in engine.texts] == texts * 2


async def test_first_word_goes_to_the_engine_with_its_space(registry: SessionRegistry, engine: RecordingEngine):
    response = registry.create(settings=PACED).create_response()
    for piece in ("Hel", "lo"):
        response.push_text(piece)
        assert engine.texts == [""], "the engine has a request, and nothing to say"
    response.push_text(" wor")
    assert engine.texts == ["Hello "]
    response.cancel()


async def test_prepared_request_is_freed_if_no_word_comes(registry: SessionRegistry, engine: RecordingEngine):
    response = registry.create(settings=PACED).create_response(text="Hel")
    assert engine.texts == [""]
    response.cancel()
    await response.released()
    assert_all_free(engine)


async def test_text_that_ends_with_its_first_word_gets_a_request_of_its_own(
    registry: SessionRegistry, engine: RecordingEngine
):
    response = registry.create(settings=PACED).create_response(text="Hello")
    response.end_input()
    await asyncio.sleep(2 * engine.step_s)
    assert list(engine.streams.values()) == engine.ever[1:], "the prepared one is free"
    assert (await read(response)).done.status is ResponseStatus.COMPLETED
    assert engine.texts == ["", "Hello"]
    assert [request.text_closed for request in engine.requests] == [False, True]


async def test_refused_prepared_request_is_submitted_once_more(registry: SessionRegistry, engine: RecordingEngine):
    response = registry.create(settings=PACED).create_response(text="Hel")
    engine.ever[0].refuse(EngineOverloaded("full", retry_after_ms=500))
    response.push_text("lo there")
    response.end_input()
    assert (await read(response)).done.status is ResponseStatus.COMPLETED
    assert engine.texts == ["", "Hello there"]


async def test_prepared_request_that_has_an_event_is_freed(registry: SessionRegistry, engine: RecordingEngine):
    engine.script_next(FakeScript(parks_first=True))
    response = registry.create(settings=PACED).create_response(text="Hel")
    await asyncio.sleep(0.01)
    response.push_text("lo there this is ")
    await asyncio.sleep(0.1)
    assert engine.texts == ["", "Hello there this is "]
    assert list(engine.streams.values()) == engine.ever[1:]
    response.cancel()


async def test_engine_that_is_down_at_the_first_letter_is_asked_again(
    registry: SessionRegistry, engine: RecordingEngine
):
    engine.crash()
    response = registry.create(settings=PACED).create_response(text="H")
    response.push_text("el")
    await engine.start()
    assert not engine.ever
    response.push_text("lo")
    assert engine.texts == [""]
    response.push_text(" there")
    response.end_input()
    assert (await read(response)).done.status is ResponseStatus.COMPLETED
    assert engine.texts == ["Hello there"]


async def test_prepared_request_speaks_the_first_segment_alone(registry: SessionRegistry, engine: RecordingEngine):
    response = registry.create(settings=PACED).create_response(text="Hel")
    response.push_text("lo there my friend. ")
    response.flush()
    response.push_text("And another ")
    record, reading = reading_task(response)
    await asyncio.sleep(10)
    response.push_text("one.")
    response.end_input()
    await reading
    assert record.done.status is ResponseStatus.COMPLETED
    assert engine.texts == ["Hello there my friend. ", "And another one."]
    assert [request.segment for request in engine.requests] == [0, 1]


async def test_suspended_session_with_a_prepared_request_is_evicted():
    engine = FakeSpeechEngine(num_slots=1, max_queued_requests=0)
    await engine.start()
    sessions: list[Session] = []

    def evict(is_wanted: Callable[[Session], bool]) -> bool:
        wanted = [session for session in sessions if is_wanted(session)]
        for session in wanted:
            session.detach()
        return bool(wanted)

    registry = SessionRegistry(engine, LIMITS, make_aligner=UniformAligner, evict=evict)
    sessions.append(suspended := registry.create(settings=PACED, is_resumable=True))
    suspended.create_response(text="H").suspend()
    live = registry.create(settings=PACED).create_response(text="Hello there.", text_closed=True)
    assert (await read(live)).done.status is ResponseStatus.COMPLETED
    assert suspended.detached.is_set()
    await registry.aclose()
    assert_all_free(engine)


async def test_response_without_a_word_is_released_with_its_request(registry: SessionRegistry, engine: RecordingEngine):
    response = registry.create(settings=PACED).create_response(text="Hel")
    response.cancel()
    assert not response.is_released
    await asyncio.sleep(2 * engine.step_s)
    assert response.is_released
    assert_all_free(engine)


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("", PACED),
        (" \n", PACED),
        ("...", PACED),
        ("Hel", BURST),
        ("Hel", replace(PACED, markup=Markup.SSML)),
    ],
)
async def test_no_request_is_prepared(
    registry: SessionRegistry, engine: RecordingEngine, text: str, settings: SpeechSettings
):
    registry.create(settings=settings).create_response(text=text)
    await asyncio.sleep(0.01)
    assert not engine.ever


async def test_no_request_is_prepared_for_what_is_spoken_again(registry: SessionRegistry, engine: RecordingEngine):
    known = SpokenSegment(False, bytearray(8))
    response = registry.create(settings=PACED).create_response(text="Hel", replay=Replay([known]))
    assert not engine.ever
    response.push_text("lo there")
    assert [request.resume for request in engine.requests] == [ResumePoint(codes=bytes(8), num_samples=0)]
    response.cancel()


async def test_requests_that_are_not_prepared_wait_for_a_word(engine: RecordingEngine):
    limits = replace(LIMITS, session=SessionLimits(prepare_requests=False))
    registry = SessionRegistry(engine, limits, make_aligner=UniformAligner)
    response = registry.create(settings=PACED).create_response(text="Hel")
    assert not engine.ever
    response.push_text("lo there")
    assert engine.texts == ["Hello "]
    await registry.aclose()


async def test_text_closed_at_start_is_passed_to_the_engine(registry: SessionRegistry, engine: RecordingEngine):
    session = registry.create(settings=BURST)
    await read(session.create_response(text="All of it.", text_closed=True))
    response = session.create_response(text="Some of ")
    response.end_input()
    await read(response)
    assert [request.text_closed for request in engine.requests] == [True, False]


@pytest.mark.parametrize("text", ["", " \n\t", "🙂🙂 🎉", "...", "— !"])
@pytest.mark.parametrize("at_once", [True, False])
async def test_unspeakable_text_is_reported(
    registry: SessionRegistry, engine: RecordingEngine, text: str, at_once: bool
):
    session = registry.create(settings=PACED)
    response = session.create_response(text=text, text_closed=at_once)
    if not at_once:
        response.end_input()
    reading = await read(response)
    assert reading.done.status is ResponseStatus.COMPLETED
    assert reading.done.nothing_spoken
    assert reading.done.heard.text == text
    assert len(reading.events) == 1
    assert not engine.requests


async def test_signs_between_words_do_not_hold_the_words_up(registry: SessionRegistry, engine: RecordingEngine):
    response = registry.create(settings=BURST).create_response(text="🙂 🙂 ")
    assert not engine.requests
    response.push_text("Hello ")
    assert [request.text for request in engine.requests] == ["🙂 🙂 Hello "]
    response.cancel()


async def test_flush_speaks_all_text_and_reports_its_end(registry: SessionRegistry, engine: RecordingEngine):
    response = registry.create(settings=BURST).create_response(text="One two")
    reading, task = reading_task(response)
    assert response.flush() == 0
    await asyncio.sleep(5)
    assert engine.texts == ["One two"]
    assert [flush.end_sample for flush in reading.flushes] == [reading.num_samples]
    assert reading.num_samples >= 6 * 1920
    assert response.flush() == 1
    response.push_text("three")
    assert response.flush() == 2
    response.end_input()
    await task
    assert [flush.flush for flush in reading.flushes] == [0, 1, 2]
    assert engine.texts == ["One two", "three"]


async def test_flushes_one_after_another_make_one_pause(registry: SessionRegistry):
    response = registry.create(settings=BURST).create_response(text="Hello there.")
    for _ in range(50):
        response.flush()
    response.end_input()
    reading = await read(response)
    assert len(reading.flushes) == 50
    assert {flush.end_sample for flush in reading.flushes} == {reading.flushes[0].end_sample}
    alone = registry.create(settings=BURST).create_response(text="Hello there.")
    alone.flush()
    alone.end_input()
    assert reading.data == (await read(alone)).data


async def test_flushes_are_limited_as_text_is(registry: SessionRegistry):
    response = registry.create(settings=BURST).create_response(text="Hello there.")
    for _ in range(50_000 - len("Hello there.")):
        response.flush()
    assert not response.is_done
    response.flush()
    done = (await read(response)).done
    assert done.error is not None
    assert done.error.code == "request_too_long"


async def test_a_flush_of_nothing_is_answered(registry: SessionRegistry):
    response = registry.create(settings=BURST).create_response()
    response.flush()
    assert await anext(response) == FlushCompleted(response.response_id, flush=0, end_sample=0)
    response.cancel()


async def test_text_and_flush_after_the_end_are_refused(registry: SessionRegistry):
    response = registry.create(settings=BURST).create_response(text="One.", text_closed=True)
    response.end_input()
    with pytest.raises(TextInputClosed, match="has ended"):
        response.push_text("two")
    with pytest.raises(TextInputClosed, match="has ended"):
        response.flush()
    assert (await read(response)).done.status is ResponseStatus.COMPLETED
    with pytest.raises(TextInputClosed, match="has ended"):
        response.push_text("two")
    with pytest.raises(StopAsyncIteration):
        await anext(response)


@pytest.mark.parametrize("at_once", [True, False])
async def test_text_beyond_the_limit_fails_the_response(registry: SessionRegistry, at_once: bool):
    session = registry.create(settings=PACED)
    if at_once:
        response = session.create_response(text="a " * 50_000, text_closed=True)
    else:
        response = session.create_response(text="a " * 10_000)
        response.push_text("a " * 40_000)
    done = (await read(response)).done
    assert done.status is ResponseStatus.FAILED
    assert done.error is not None
    assert done.error.code == "request_too_long"
    assert "max_response_chars is 50000" in done.error.message


async def test_a_long_text_is_read_only_as_far_as_it_is_spoken(registry: SessionRegistry, engine: RecordingEngine):
    response = registry.create(settings=PACED).create_response(text=SENTENCE * 700, text_closed=True)
    _, task = reading_task(response)
    await asyncio.sleep(30)
    assert len(engine.requests) < 6
    response.cancel()
    await task


async def test_no_audio_follows_a_cancel_and_all_is_free(registry: SessionRegistry, engine: RecordingEngine):
    response = registry.create(settings=PACED).create_response(text=LONG, text_closed=True)
    reading, task = reading_task(response)
    await asyncio.sleep(3)
    num_audio = len(reading.audio)
    assert engine.stats().num_running == 1
    response.cancel()
    assert all(stream._ended for stream in engine.streams.values())
    await asyncio.sleep(0)
    assert engine.streams
    started_s = asyncio.get_running_loop().time()
    await response.released()
    assert_all_free(engine)
    assert asyncio.get_running_loop().time() - started_s <= STEP_S + 1e-6
    await task
    assert num_audio > 0
    assert len(reading.audio) == num_audio
    assert reading.done.status is ResponseStatus.CANCELLED


async def test_cancel_before_the_woken_reader_runs_is_effective(registry: SessionRegistry):
    response = registry.create(settings=PACED).create_response(text=LONG, text_closed=True)
    waiting = asyncio.ensure_future(anext(response))
    while not response._output._reader._is_set:  # the sound is there, and the reader is about to run
        await asyncio.sleep(0)
        if response._ring.is_empty:
            await asyncio.sleep(0.001)
    response.cancel()
    assert not isinstance(await waiting, ResponseAudio)


async def test_cancel_reports_heard_text_by_client_position(registry: SessionRegistry):
    response = registry.create(settings=BURST).create_response(text="one two three four")
    response.flush()
    _, task = reading_task(response)
    await asyncio.sleep(1)
    response.cancel(played_ms=560)  # of 1120
    done = (await task).done
    assert (done.heard.text, done.heard.remaining) == ("one two", " three four")
    assert done.heard.audio_ms == pytest.approx(560, abs=1)


@pytest.mark.parametrize(
    ("played_ms", "heard"),
    [(-5.0, ""), (-1e308, ""), (1e12, "one two three"), (1e308, "one two three"), (float("nan"), "one two")],
)
async def test_playback_report_is_limited_to_what_was_sent(registry: SessionRegistry, played_ms: float, heard: str):
    response = registry.create(settings=BURST).create_response(text="one two three four ")
    reading, task = reading_task(response)
    await asyncio.sleep(0.7)
    response.cancel(played_ms)
    await task
    assert reading.done.heard.text == heard
    assert reading.done.heard.audio_ms <= reading.done.audio_ms + 0.1


async def test_what_was_heard_can_be_asked_after_the_end(registry: SessionRegistry):
    session = registry.create(settings=BURST)
    response = session.create_response("r", text="one two three four", text_closed=True)
    await read(response)
    await asyncio.sleep(1)
    assert response.heard(560).text == "one two"
    assert session.response("r").heard(1200).text == "one two three four"
    response.cancel()


async def test_time_to_first_audio_runs_from_the_delta_of_its_word(registry: SessionRegistry, engine: RecordingEngine):
    response = registry.create(settings=PACED).create_response()
    _, task = reading_task(response)
    for delta in ("Hel", "lo", " wor"):
        await asyncio.sleep(1)
        response.push_text(delta)
    await asyncio.sleep(1)
    response.cancel()
    assert (await task).done.first_audio_ms == pytest.approx(100, abs=6)


async def test_text_after_a_segment_the_engine_ended_is_spoken(registry: SessionRegistry, engine: RecordingEngine):
    engine.script_next(FakeScript(end_at_frame=3))
    response = registry.create(settings=BURST).create_response(text="one two three four five ")
    _, task = reading_task(response)
    await asyncio.sleep(1)
    response.push_text("six seven.")
    response.end_input()
    assert (await task).done.status is ResponseStatus.COMPLETED
    assert engine.texts == ["one two three four five ", "six seven."]


@pytest.mark.parametrize("cancel", [False, True])
async def test_retained_response_holds_no_encoder(registry: SessionRegistry, engine: RecordingEngine, cancel: bool):
    session = registry.create()
    gc.collect()
    encoders_before = num_encoders()
    for number in range(2):
        response = session.create_response(f"r{number}", text=SENTENCE * 3, text_closed=not cancel)
        _, task = reading_task(response)
        await asyncio.sleep(1)
        if cancel:
            response.cancel()
        await task
        await response.released()
    streams = [weakref.ref(stream) for stream in engine.ever]
    engine.ever.clear()
    gc.collect()
    assert session.response("r0").heard().text
    assert num_encoders() == encoders_before
    assert not any(stream() for stream in streams)


def num_encoders() -> int:
    return sum(type(thing) is OpusEncoder for thing in gc.get_objects())


async def test_responses_do_not_disturb_each_other(registry: SessionRegistry):
    session = registry.create(settings=PACED)
    alone = await read(session.create_response(text=LONG, text_closed=True))
    others = [session.create_response(settings=replace(PACED, voice="ben")) for _ in range(3)]
    response = session.create_response(text=LONG, text_closed=True)
    reading, task = reading_task(response)
    for other in others:
        other.push_text(LONG)
        reading_task(other)
    await asyncio.sleep(2)
    others[0].cancel()
    await asyncio.sleep(2)
    others[1].push_text("🙂")
    await task
    assert reading.data == alone.data
    assert {message.response_id for message in reading.audio} == {response.response_id}


async def test_format_states_its_pre_skip(registry: SessionRegistry):
    session = registry.create()
    skips = [session.create_response(settings=SpeechSettings(format=audio)).pre_skip_samples for audio in FORMATS[:6]]
    assert skips == [156, 312, 0, 0, 0, 0]


def test_pcm_is_what_the_tests_expect():
    assert PCM.sample_rate == SAMPLE_RATE


SPEEDS = [0.25, 0.7, 1.5, 4.0]


@pytest.mark.parametrize(
    ("speed", "encoding"),
    [*((speed, Encoding.PCM_S16LE) for speed in SPEEDS), (0.7, Encoding.MP3), (1.5, Encoding.OPUS)],
)
async def test_the_audio_is_as_long_as_the_speed_asks(registry: SessionRegistry, speed: float, encoding: Encoding):
    settings = replace(BURST, format=AudioFormat(encoding=encoding))
    session = registry.create(settings=settings)
    text = SENTENCE * 3
    plain = (await read(session.create_response(text=text, text_closed=True))).done
    response = session.create_response(settings=replace(settings, speed=speed), text=text, text_closed=True)
    changed = (await read(response)).done
    assert changed.audio_ms == pytest.approx(plain.audio_ms / speed, abs=1)
    assert changed.heard.text == text
    assert (changed.num_frames, changed.num_text_tokens) == (plain.num_frames, plain.num_text_tokens)
    assert changed.num_frames == pytest.approx(plain.audio_ms / 80, abs=5)


@pytest.mark.parametrize("speed", SPEEDS)
async def test_heard_text_uses_the_listener_s_time(registry: SessionRegistry, speed: float):
    """60 ms a character by the engine's clock; the aligner spreads the text evenly."""
    session = registry.create(settings=replace(BURST, speed=speed))
    response = session.create_response(text=SENTENCE, text_closed=True)
    await read(response)
    await asyncio.sleep(60)
    for num_chars in (20, 40, 60):
        heard = response.heard(60 * num_chars / speed)
        assert len(heard.text) == pytest.approx(num_chars, abs=12)


@pytest.mark.parametrize("speed", SPEEDS)
async def test_a_listener_in_real_time_has_no_gap(registry: SessionRegistry, engine: RecordingEngine, speed: float):
    """The fake engine is four times faster than speech, so fourfold speed leaves it no time to spare."""
    engine.script = replace(engine.script, real_time_factor=0.1)
    response = registry.create(settings=replace(PACED, speed=speed)).create_response(text=LONG, text_closed=True)
    reading = await read(response)
    assert reading.done.status is ResponseStatus.COMPLETED
    played_s = reading.times_s[0]
    for event, time_s in zip(reading.audio, reading.times_s, strict=False):
        assert time_s <= played_s + 1e-6, "audio came after the listener had run dry"
        played_s += event.num_samples / 24_000


async def test_a_flush_brings_all_sound_out(registry: SessionRegistry):
    session = registry.create(settings=replace(BURST, speed=1.5))
    response = session.create_response()
    reading, task = reading_task(response)
    response.push_text(SENTENCE)
    response.flush()
    await asyncio.sleep(60)
    (flush,) = reading.flushes
    assert flush.end_sample == reading.num_samples
    assert reading.num_samples / 24_000 >= len(SENTENCE) * 0.06 / 1.5
    response.end_input()
    await task
