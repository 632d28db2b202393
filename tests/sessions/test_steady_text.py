"""Text that keeps coming is spoken as one segment, whatever the engine's load; only a stall of the writer cuts it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchmarks.fairness import Player
from engine.api import SamplingParams
from engine.config import EngineConfig
from engine.ipc import Command
from engine.launch import CPU_LEAD_TICK_S, EMBEDDED_VOICE
from engine.load import load_engine
from engine.loop import EngineLoop
from engine.streams import EngineStream, StreamTable
from sessions.clock import WakeEvent, now_s
from sessions.config import RegistryLimits
from sessions.events import ResponseAudio
from sessions.registry import SessionRegistry
from tests.fakes.engine_script import FakeScript
from tests.sessions.conftest import PACED, RecordingEngine
from tests.sessions.response_reader import reading_task

pytestmark = pytest.mark.virtual_time

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


@pytest.mark.parametrize("tokens_per_s", [8, 10, 15, 20, 50, 200])
async def test_steady_text_is_one_segment(
    registry: SessionRegistry, engine: RecordingEngine, tokens_per_s: float
) -> None:
    assert await count_cut_replies(registry, engine, tokens_per_s, 15) == 0


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("tokens_per_s", [15, 20, 50, 100])
async def test_thousands_of_steady_replies_are_not_cut(
    registry: SessionRegistry, engine: RecordingEngine, tokens_per_s: float
) -> None:
    assert await count_cut_replies(registry, engine, tokens_per_s, 2_500) == 0


async def count_cut_replies(
    registry: SessionRegistry, engine: RecordingEngine, tokens_per_s: float, num_replies: int
) -> int:
    """Replies that came out as more than one segment."""
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
    return num_cut


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


# -- the embedded voice ------------------------------------------------------------------------------------------


class SteppedEngine(EngineLoop):
    """The part of ``SpeechEngine`` that a response needs, without a thread; each step takes virtual time."""

    def __init__(self, num_other_rows: int) -> None:
        self.num_other_rows, self.num_segments = num_other_rows, 0
        config = EngineConfig(lead_step_interval_s=CPU_LEAD_TICK_S, max_running_requests=4)
        voice = load_engine(EMBEDDED_VOICE, config, "cpu", "float32", is_embedded=True)
        self.info, self.streams, self.wake = voice.info, StreamTable(self.send), WakeEvent()
        super().__init__(voice.make_engine, self.streams.dispatch, lambda error: None)
        self.engine = voice.make_engine()
        self.engine.clock = now_s

    def send(self, command: Command) -> None:
        super().send(command)
        self.wake.set()

    def submit(self, *args) -> EngineStream:
        self.num_segments += 1
        return self.streams.submit(*args)

    def prefetch_voices(self, voices: Sequence[str]) -> None: ...

    async def run(self) -> None:
        while True:
            self._process_commands()
            if self.engine.has_work:
                num_before = self.engine.times.num_rows
                self.engine.step()
                num_rows = self.engine.times.num_rows - num_before + self.num_other_rows
                await asyncio.sleep(BASE_S + ROW_S * num_rows)
            else:
                await self.wake.wait(self.engine.next_wake_s())
            self._flush()


@pytest.mark.parametrize(("tokens_per_s", "num_other_rows"), [(8, 4), (8, 32), (15, 32)])
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
