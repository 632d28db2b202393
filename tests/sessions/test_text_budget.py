"""However costly a client's text is, one event loop iteration reads little of it, and sessions take turns."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api import SpeechRequest
from sessions.registry import SessionRegistry
from sessions.text.block_splitter import TextBlock
from sessions.text.normalizer import IncrementalNormalizer
from sessions.text.segmenter import Segmenter
from sessions.text.spans import SpannedText
from sessions.text_track import TextTrack
from tests.fakes.engine_script import FakeScript
from tests.fakes.virtual_time import VirtualTimeLoop
from tests.sessions.conftest import BURST, LIMITS, RecordingEngine, assert_all_free
from tests.sessions.response_reader import read, reading_task
from tests.sessions.text.texts import KINDS, text_of

MAX_CHARS = 128
# At most so many are held back, and may be completed by one character.
MAX_BLOCK_CHARS = 600
# What one character may become, in spoken words.
MAX_SPOKEN_CHARS = 20
SHORT = FakeScript(end_at_frame=1, first_chunk_s=0.0, real_time_factor=0.0)
NORMALIZED = replace(BURST, normalize_text=True)


@dataclass
class Reads:
    """Characters normalized and segmented in each event loop iteration."""

    normalized: Counter[int] = field(default_factory=Counter)
    segmented: Counter[int] = field(default_factory=Counter)

    @property
    def num_chars(self) -> int:
        return self.normalized.total() + self.segmented.total()

    def check(self, normalize: bool) -> None:
        assert self.num_chars
        num_chars = MAX_CHARS + MAX_BLOCK_CHARS
        assert max(self.normalized.values(), default=0) <= num_chars
        assert max(self.segmented.values(), default=0) <= (num_chars * MAX_SPOKEN_CHARS if normalize else num_chars)


@contextmanager
def counted_reads() -> Iterator[Reads]:
    reads = Reads()
    say_block, push = IncrementalNormalizer._verbalize_block, Segmenter.push

    def counted_say_block(normalizer: IncrementalNormalizer, block: TextBlock) -> SpannedText:
        reads.normalized[iteration()] += block.raw_end - block.raw_start
        return say_block(normalizer, block)

    def counted_push(segmenter: Segmenter, text: SpannedText) -> object:
        reads.segmented[iteration()] += len(text.text)
        return push(segmenter, text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(IncrementalNormalizer, "_verbalize_block", counted_say_block)
        patch.setattr(Segmenter, "push", counted_push)
        yield reads


def iteration() -> int:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    return loop.num_iterations


async def pass_iterations(num_iterations: int) -> None:
    end = iteration() + num_iterations
    while iteration() < end:
        await asyncio.sleep(0)


@pytest.fixture
def reads() -> Iterator[Reads]:
    with counted_reads() as reads:
        yield reads


@pytest.mark.virtual_time
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("kind", KINDS)
async def test_an_iteration_reads_few_characters_of_any_kind(
    registry: SessionRegistry, engine: RecordingEngine, reads: Reads, kind: str, normalize: bool
) -> None:
    engine.script = SHORT
    session = registry.create(settings=replace(BURST, normalize_text=normalize))
    response = session.create_response(text=text_of(KINDS[kind], 3_000), text_closed=True)
    await read(response)
    reads.check(normalize)


@settings(max_examples=25)
@given(
    units=st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=4),
    places=st.lists(st.integers(0, 49_990), max_size=5),
    normalize=st.booleans(),
)
def test_an_iteration_reads_few_characters_of_any_text(units: list[str], places: list[int], normalize: bool) -> None:
    """Whatever several clients write, in whatever pieces, and flush."""

    async def write() -> None:
        engine = RecordingEngine()
        engine.script = SHORT
        await engine.start()
        registry = SessionRegistry(engine, LIMITS)
        with counted_reads() as reads:
            session = registry.create(settings=replace(BURST, normalize_text=normalize))
            tasks = []
            for unit in units:
                text, edges = text_of(unit), sorted({0, *places, 49_990})
                response = session.create_response()
                for start, end in pairwise(edges):
                    response.push_text(text[start:end])
                    response.flush()
                tasks.append(reading_task(response)[1])
            await pass_iterations(60)
            await session.aclose()
            await asyncio.gather(*tasks)
            reads.check(normalize)
        assert_all_free(engine)
        await engine.aclose()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(write())


@pytest.mark.virtual_time
async def test_cancel_stops_pending_text_at_once(registry: SessionRegistry, reads: Reads) -> None:
    response = registry.create(settings=NORMALIZED).create_response(text=text_of("( ) "), text_closed=True)
    _, task = reading_task(response)
    await pass_iterations(10)
    num_chars = reads.num_chars
    assert 0 < num_chars < 5_000
    response.cancel()
    await task
    await pass_iterations(10)
    assert reads.num_chars == num_chars
    assert not response._text.wants_text


@pytest.mark.virtual_time
async def test_create_cancel_loop_leaves_room_for_others(
    registry: SessionRegistry, engine: RecordingEngine, reads: Reads
) -> None:
    """The client writes the costliest text in all its responses, and cancels them again in each iteration."""
    greedy, other = (registry.create(settings=NORMALIZED) for _ in range(2))
    done = asyncio.Event()

    async def create_and_cancel() -> None:
        while not done.is_set():
            responses = [greedy.create_response(text=text_of("( ) "), text_closed=True) for _ in range(8)]
            await asyncio.sleep(0)
            for response in responses:
                response.cancel()
            for response in responses:
                await read(response)

    task = asyncio.create_task(create_and_cancel())
    for number in range(10):
        await pass_iterations(3)
        response = other.create_response(text="Hello there, how are you? ")
        start = iteration()
        while len(engine.requests) <= number:
            await asyncio.sleep(0)
            assert iteration() - start <= 12
        response.cancel()
        await read(response)
    done.set()
    await task
    reads.check(normalize=True)


@pytest.mark.virtual_time
async def test_sessions_take_turns_whatever_number_of_responses_they_have(
    registry: SessionRegistry, reads: Reads
) -> None:
    many, one = (registry.create(settings=NORMALIZED) for _ in range(2))
    responses = [many.create_response(text=text_of("( ) "), text_closed=True) for _ in range(8)]
    responses.append(one.create_response(text=text_of("( ) "), text_closed=True))
    await pass_iterations(101)
    *theirs, ours = (_num_chars_read(response._text) for response in responses)
    assert ours == pytest.approx(sum(theirs), abs=500)
    assert min(theirs) == pytest.approx(max(theirs), abs=500)
    await many.aclose()
    await one.aclose()


def _num_chars_read(script: TextTrack) -> int:
    return script._num_chars_read


@pytest.mark.virtual_time
async def test_segments_begin_with_all_text_that_is_there(registry: SessionRegistry, engine: RecordingEngine) -> None:
    """Reading in several iterations does not show: what the client has written is there when a request begins."""
    text = "word " * 100
    session = registry.create(settings=replace(NORMALIZED, lead_ms=2_000))
    response = session.create_response(text=text, text_closed=True)
    await read(response)
    first: SpeechRequest = engine.requests[0]
    assert first.text_closed
    assert len(first.text) > 3 * MAX_CHARS
