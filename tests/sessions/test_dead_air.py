"""Slow text is a pause between utterances and never a break inside one; steady text is one segment."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.fairness import Player
from engine.api import SamplingParams
from engine.config import EngineConfig
from engine.ipc import Command
from engine.launch import CPU_LEAD_TICK_S, EMBEDDED_VOICE
from engine.load import load_engine
from engine.loop import EngineLoop
from engine.streams import EngineStream, StreamTable
from sessions.audio.pcm import Pcm
from sessions.clock import WakeEvent, now_s
from sessions.config import AudioFormat, Encoding, RegistryLimits, SpeechSettings
from sessions.events import ResponseAudio
from sessions.registry import SessionRegistry
from sessions.response import Response
from sessions.session import Session
from tests.fakes.engine import FakeScript, FakeSpeechEngine
from tests.sessions.audio.signals import decode
from tests.sessions.conftest import PACED, RecordingEngine, assert_all_free, read, reading_task

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("quick_engines")]

# 28 characters: 1.68 s of speech.
SIX_WORDS = "one two three four five six "


def left_ms(response: Response) -> float:
    return response._ring.left_ms(now_s())


@pytest.mark.parametrize("num_clumps", [1, 4])
async def test_segment_closes_when_little_is_left(
    registry: SessionRegistry, engine: RecordingEngine, num_clumps: int
) -> None:
    response = registry.create(settings=PACED).create_response()
    reading_task(response)
    for _ in range(num_clumps):
        response.push_text(SIX_WORDS)
        await asyncio.sleep(0.12)
    segment = response._text.open
    assert segment is not None
    while not segment.closed:
        assert left_ms(response) >= 290 or not segment.is_parked
        await asyncio.sleep(0.005)
    assert 280 <= left_ms(response) <= 300
    response.cancel()


@pytest.mark.parametrize(
    ("text", "pause_s", "more", "avoid", "segments"),
    [
        (SIX_WORDS + "sev", 5, "en eight nine. ", True, [SIX_WORDS, "seven eight nine. "]),  # no word is cut in two
        ("one two three ", 30, " and more ", True, ["one two three  and more "]),  # few words, and no mark
        ("one two three four fi", 30, " and more ", True, ["one two three four fi and more "]),
        ("Well, ", 5, "then. ", True, ["Well, ", "then. "]),  # a clause mark ends few words
        (SIX_WORDS, 30, "seven.", False, [SIX_WORDS + "seven."]),
    ],
)
async def test_late_text_begins_another_segment(
    registry: SessionRegistry,
    engine: RecordingEngine,
    text: str,
    pause_s: float,
    more: str,
    avoid: bool,
    segments: list[str],
):
    response = registry.create(settings=replace(PACED, avoid_dead_air=avoid)).create_response(text=text)
    _, task = reading_task(response)
    await asyncio.sleep(pause_s)
    response.push_text(more)
    response.end_input()
    done = (await task).done
    assert engine.texts == segments
    assert done.heard.text == text + more


async def test_text_in_time_keeps_the_segment_open(registry: SessionRegistry, engine: RecordingEngine):
    response = registry.create(settings=PACED).create_response(text=SIX_WORDS)
    _, task = reading_task(response)
    for _ in range(6):
        await asyncio.sleep(1.2)
        response.push_text(SIX_WORDS)
    response.end_input()
    await task
    assert engine.texts == [SIX_WORDS * 7]


async def test_text_after_an_early_close_is_gathered(registry: SessionRegistry, engine: RecordingEngine):
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


NUM_TOKENS = 45  # the segmenter ends no segment of fewer characters at a comma
TOKEN_MS = 80.0
MAX_CLUMP_S = 0.25
# Steps of the embedded voice.
BASE_S, ROW_S = 0.010, 0.002
# From a token to its audio: the rest of its word, a step that has begun, and its own step.
MAX_LATENCY_S = 0.3
MAX_GAP_S = 0.5
WORDS = ("so ", "they ", "went ", "a", "long ", "the ", "riv", "er, ", "and ", "then ", "under", "neath ", "it ")


def script_at_load(rng: random.Random) -> FakeScript:
    """An engine that speaks a token in one frame, at some load: late at first, slow, and now and then stalled."""
    stalls_s = {rng.randrange(NUM_TOKENS): rng.uniform(0.05, 0.3) for _ in range(rng.randrange(4))}
    return FakeScript(
        ms_per_char=TOKEN_MS / 4,
        first_chunk_s=rng.uniform(0.01, 0.3),
        real_time_factor=rng.uniform(0.03, 0.8),
        stalls_s=stalls_s,
    )


def delays_s(rng: random.Random, tokens_per_s: float) -> list[float]:
    """Seconds before each token: in clumps of one to four, as packets of a language model's stream bring them."""
    delays: list[float] = []
    while len(delays) < NUM_TOKENS:
        clump = rng.randint(1, max(1, min(4, int(MAX_CLUMP_S * tokens_per_s))))
        delays += [clump / tokens_per_s * rng.uniform(0.7, 1.3), *[0.0] * (clump - 1)]
    return delays[:NUM_TOKENS]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("tokens_per_s", "num_replies"),
    [
        *((tokens_per_s, 15) for tokens_per_s in (8, 10, 15, 20, 50, 200)),
        *(pytest.param(tokens_per_s, 2_500, marks=pytest.mark.slow) for tokens_per_s in (15, 20, 50, 100)),
    ],
)
async def test_steady_text_is_one_segment(
    registry: SessionRegistry, engine: RecordingEngine, tokens_per_s: float, num_replies: int
) -> None:
    rng = random.Random(tokens_per_s)
    num_cut = 0
    for _ in range(num_replies):
        engine.ever.clear()
        engine.script = script_at_load(rng)
        response = registry.create(settings=PACED).create_response()
        _, task = reading_task(response)
        for delay_s in delays_s(rng, tokens_per_s):
            await asyncio.sleep(delay_s)
            response.push_text(rng.choice(WORDS))
        response.end_input()
        await task
        num_cut += len(engine.texts) > 1
    assert num_cut == 0


@pytest.mark.parametrize(("tokens_per_s", "clump"), [(8, 6), (8, 7), (10, 6), (15, 8)])
async def test_clumps_of_characters_are_one_segment(
    registry: SessionRegistry, engine: RecordingEngine, tokens_per_s: float, clump: int
) -> None:
    engine.script = FakeScript(ms_per_char=TOKEN_MS / 4, first_chunk_s=0.05, real_time_factor=0.1)
    response = registry.create(settings=PACED).create_response()
    _, task = reading_task(response)
    for at in range(0, NUM_TOKENS, clump):
        for character in "".join(WORDS[(at + index) % len(WORDS)] for index in range(clump)):
            response.push_text(character)
        await asyncio.sleep(clump / tokens_per_s)
    response.end_input()
    await task
    assert len(engine.texts) == 1


async def test_text_typed_slowly_is_spoken_in_pieces(registry: SessionRegistry, engine: RecordingEngine) -> None:
    engine.script = FakeScript(ms_per_char=TOKEN_MS / 4, first_chunk_s=0.05, real_time_factor=0.1)
    response = registry.create(settings=PACED).create_response()
    _, task = reading_task(response)
    for character in "so this is what a person types, letter by letter, at a keyboard " * 2:
        response.push_text(character)
        await asyncio.sleep(0.2)
    response.end_input()
    await task
    assert len(engine.texts) >= 4


@pytest.mark.parametrize("tokens_per_s", [8, 15, 50])
async def test_stalled_text_is_cut_once(
    registry: SessionRegistry, engine: RecordingEngine, tokens_per_s: float
) -> None:
    rng = random.Random(tokens_per_s)
    engine.script = FakeScript(ms_per_char=TOKEN_MS / 4, first_chunk_s=0.05, real_time_factor=0.1)
    response = registry.create(settings=PACED).create_response()
    _, task = reading_task(response)
    for _ in range(2):
        for delay_s in delays_s(rng, tokens_per_s):
            await asyncio.sleep(delay_s)
            response.push_text(rng.choice(WORDS))
        response.push_text("end ")
        await asyncio.sleep(8)
        assert response._text.open is None
    response.end_input()
    await task
    assert len(engine.texts) == 2


class SteppedEngine(EngineLoop):
    """The part of ``SpeechEngine`` that a response needs, without a thread; each step takes virtual time."""

    def __init__(self, num_other_rows: int) -> None:
        self.num_other_rows, self.num_segments = num_other_rows, 0
        config = EngineConfig(lead_step_interval_s=CPU_LEAD_TICK_S, max_running_requests=4, lazy_graph_capture=True)
        voice = load_engine(EMBEDDED_VOICE, config, "cpu", "float32", is_embedded=True)
        self.info, self.streams, self.wake = voice.info, StreamTable(self.send), WakeEvent()
        super().__init__(voice.make_engine, self.streams.dispatch, lambda error: None)
        self.engine = voice.make_engine()
        self.engine.requests.clock, self.engine.read_command = now_s, self._process_next_command

    def send(self, command: Command) -> None:
        super().send(command)
        self.wake.set()

    def submit(self, *args) -> EngineStream:
        self.num_segments += 1
        return self.streams.submit(*args)

    def prefetch_voices(self, voices: Sequence[str]) -> None: ...

    async def run(self) -> None:
        while True:
            self.engine.read_commands()
            if self.engine.has_work:
                num_before = self.engine.times.num_rows
                self.engine.step()
                num_rows = self.engine.times.num_rows - num_before + self.num_other_rows
                await asyncio.sleep(BASE_S + ROW_S * num_rows)
            else:
                await self.wake.wait(self.engine.next_wake_s())
            self._flush()


@pytest.mark.parametrize(
    ("tokens_per_s", "num_other_rows"),
    [(15, 32), *(pytest.param(8, num_rows, marks=pytest.mark.slow) for num_rows in (4, 32))],
)
async def test_steady_text_is_one_segment_and_a_stall_ends_it(tokens_per_s: float, num_other_rows: int) -> None:
    engine, rng = SteppedEngine(num_other_rows), random.Random(tokens_per_s)
    running = asyncio.create_task(engine.run())
    registry = SessionRegistry(engine, RegistryLimits(encoder_threads=0))
    response = registry.create(settings=replace(PACED, sampling=SamplingParams(seed=1))).create_response()
    record, reading = reading_task(response)
    missing_s = 0.0
    for number, delay_s in enumerate(delays_s(rng, tokens_per_s)):
        await asyncio.sleep(delay_s)
        response.push_text(rng.choice(WORDS))
        # A voice that reads a token in each frame lacks this one for so long.
        missing_s = max(missing_s, now_s() - (record.times_s or [now_s()])[0] - TOKEN_MS / 1000 * number)
    assert engine.num_segments == 1, "steady text was cut"
    response.push_text("end ")
    await asyncio.sleep(12)
    player = Player(0.0)
    for time_s, event in zip(record.times_s, record.events, strict=True):
        assert isinstance(event, ResponseAudio)
        player.push(event.num_samples / engine.info.sample_rate, time_s)
    assert max(player.gaps_s, default=0.0) <= MAX_GAP_S
    assert sum(player.gaps_s) <= missing_s + MAX_LATENCY_S
    num_samples = record.num_samples
    response.end_input()
    await reading
    assert record.num_samples - num_samples <= 2 * 480, "the stall kept back more than the last packet"
    await registry.aclose()
    running.cancel()
    await asyncio.wait([running])


SAMPLE_RATE = 24_000
FORMATS = [Encoding.PCM_S16LE, Encoding.MP3, Encoding.AAC, Encoding.FLAC, Encoding.OGG_OPUS]
# Of one packet of the codecs.
TOLERANCE_S = 0.024
FIRST, SECOND = "One two three four. ", "Five six seven eight."


def longest_silence_s(pcm: Pcm) -> float:
    """Inside the speech, in windows of 2 ms."""
    windows = np.abs(pcm[: pcm.size // 48 * 48]).reshape(-1, 48).max(axis=1) > 0.02
    loud = np.flatnonzero(windows)
    return 0.002 * float(np.diff(loud).max() - 1)


@contextlib.asynccontextmanager
async def open_session(script: FakeScript, encoding: Encoding, lead_ms: int | None) -> AsyncIterator[Session]:
    engine = FakeSpeechEngine(script)
    await engine.start()
    registry = SessionRegistry(engine, RegistryLimits(encoder_threads=0))
    audio = AudioFormat(encoding=encoding, sample_rate=SAMPLE_RATE)
    yield registry.create(settings=SpeechSettings(format=audio, lead_ms=lead_ms))
    await registry.aclose()
    assert_all_free(engine)
    await engine.aclose()


async def speak(encoding: Encoding, lead_ms: int | None) -> tuple[Pcm, list[int]]:
    """PCM of two segments with a flush between them, and the flushes' positions."""
    async with open_session(FakeScript(first_chunk_s=0.1), encoding, lead_ms) as opened:
        response = opened.create_response()
        response.push_text(FIRST)
        response.flush()
        response.push_text(SECOND)
        response.end_input()
        reading = await read(response)
    return decoded(reading.data, encoding), [one.end_sample for one in reading.flushes]


def decoded(data: bytes, encoding: Encoding) -> Pcm:
    if encoding is Encoding.PCM_S16LE:
        return np.frombuffer(data, "<i2").astype(np.float32) / 32_768
    pcm, rate = decode(data, encoding)
    assert rate == SAMPLE_RATE or encoding is Encoding.OGG_OPUS
    return pcm[::2] if rate == 2 * SAMPLE_RATE else pcm


@pytest.mark.parametrize("lead_ms", [None, 2_000])
@pytest.mark.parametrize("encoding", FORMATS[1:])
async def test_pause_at_a_flush_is_that_of_pcm(encoding: Encoding, lead_ms: int | None) -> None:
    expected, expected_flushes = await speak(Encoding.PCM_S16LE, lead_ms)
    pcm, flushes = await speak(encoding, lead_ms)
    assert abs(longest_silence_s(pcm) - longest_silence_s(expected)) <= TOLERANCE_S
    assert len(flushes) == len(expected_flushes) == 1


@pytest.mark.parametrize("lead_ms", [None, 2_000])
@pytest.mark.parametrize("encoding", FORMATS[1:])
async def test_flush_without_further_text_releases_all_audio(encoding: Encoding, lead_ms: int | None) -> None:
    async with open_session(FakeScript(), Encoding.PCM_S16LE, lead_ms) as opened:
        response = opened.create_response(text=FIRST)
        response.end_input()
        spoken = decoded((await read(response)).data, Encoding.PCM_S16LE)
    async with open_session(FakeScript(), encoding, lead_ms) as opened:
        response = opened.create_response(text=FIRST)
        response.flush()
        reading, task = reading_task(response)
        await asyncio.sleep(10)
        assert len(reading.flushes) == 1
        heard = decoded(reading.data, encoding)
        assert np.flatnonzero(np.abs(heard) > 0.02)[-1] >= np.flatnonzero(np.abs(spoken) > 0.02)[-1]
        response.cancel()
        await task


@pytest.mark.parametrize("parks_first", [False, True])
@pytest.mark.parametrize("encoding", FORMATS)
async def test_late_segment_does_not_hold_the_audio_before_it(encoding: Encoding, parks_first: bool) -> None:
    """The flush is complete before the listener has played what was sent. A cancel leaves nothing behind."""
    async with open_session(FakeScript(first_chunk_s=4.0, parks_first=parks_first), encoding, 2_000) as opened:
        response = opened.create_response(text=FIRST)
        response.flush()
        response.push_text(SECOND)
        reading, task = reading_task(response)
        while not reading.flushes:
            await asyncio.sleep(0.01)
        begin_s = reading.times_s[0]
        assert reading.times_s[-1] - begin_s <= reading.num_samples / SAMPLE_RATE
        response.cancel()
        await task
