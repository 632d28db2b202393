"""Text on its way: the same segments however it is cut or read, little of it in one iteration."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engine.api import SpeechRequest
from sessions.registry import SessionRegistry
from sessions.text.block_splitter import TextBlock
from sessions.text.normalizer import IncrementalNormalizer
from sessions.text.segmenter import Segmenter
from sessions.text.spans import SpannedText
from sessions.text.word_joiner import MAX_HELD_CHARS, WordBuffer
from sessions.text_items import FlushItem, TextSegment
from sessions.text_track import READ_AHEAD_SEGMENTS, TextTrack
from sessions.timeline import ResponseTimeline
from tests.fakes.engine_script import FakeScript
from tests.fakes.virtual_time import VirtualTimeLoop
from tests.sessions.conftest import BURST, LIMITS, RecordingEngine, assert_all_free, read, reading_task
from tests.sessions.text.texts import KINDS, text_of

pytestmark = pytest.mark.virtual_time

TEXT = st.text(st.sampled_from("ab ,.\n é🙂日本3$%"), max_size=400) | st.text(max_size=60)


def read_on(track: TextTrack, max_chars: int = 500) -> None:
    while track.wants_text:
        track.read(max_chars)


def pop_all(track: TextTrack, max_chars: int = 500) -> list[TextSegment | FlushItem]:
    """Pop items as the response does: a segment once it has text that can be spoken."""
    popped = []
    read_on(track, max_chars)
    while track.waiting and (isinstance(track.waiting[0], FlushItem) or track.waiting[0].speakable):
        popped.append(track.pop())
        read_on(track, max_chars)
    return popped


def read_pieces(pieces: list[str], normalize: bool) -> tuple[list[str], list[int], TextTrack]:
    timeline = ResponseTimeline(24_000)
    track = TextTrack(timeline, normalize)
    segments = []
    for piece in pieces:
        track.push(piece, 0.0)
        segments += pop_all(track)
    track.end()
    segments += pop_all(track)
    assert track.exhausted
    spoken = [segment for segment in segments if isinstance(segment, TextSegment) and segment.speakable]
    return [segment.text.rstrip() for segment in spoken], [segment.spoken.words.raw_end for segment in spoken], track


def cuts(text: str, places: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[start:end] for start, end in pairwise(edges)]


@given(TEXT, st.lists(st.integers(0, 1000), max_size=8), st.booleans())
def test_any_cut_gives_the_same_segments(text: str, places: list[int], normalize: bool):
    assert read_pieces(cuts(text, places), normalize)[:2] == read_pieces([text], normalize)[:2]


@given(TEXT, st.booleans())
def test_segments_close_and_follow_each_other_in_the_text(text: str, normalize: bool):
    timeline = ResponseTimeline(24_000)
    track = TextTrack(timeline, normalize)
    track.push(text, 0.0)
    track.end()
    segments = [segment for segment in pop_all(track) if isinstance(segment, TextSegment)]
    assert all(segment.closed for segment in segments)
    assert [segment.index for segment in segments] == sorted({segment.index for segment in segments})
    ranges = [(segment.spoken.words.raw_start, segment.spoken.words.raw_end) for segment in segments]
    assert ranges == sorted(ranges)
    assert all(start <= end <= len(text) for start, end in ranges)


def test_a_long_text_is_read_as_far_as_needed():
    track = TextTrack(ResponseTimeline(24_000), normalize=False)
    track.push("A sentence that is not long. " * 1_000, 0.0)
    track.end()
    read_on(track)
    assert READ_AHEAD_SEGMENTS < len(track.waiting) <= READ_AHEAD_SEGMENTS + 5
    assert not track.exhausted
    assert sum(len(segment.text) for segment in pop_all(track) if isinstance(segment, TextSegment)) > 28_000
    assert track.exhausted


@given(TEXT, st.lists(st.integers(0, 1000), max_size=8), st.booleans(), st.integers(1, 9))
def test_any_budget_gives_the_same_segments(text: str, places: list[int], normalize: bool, max_chars: int):
    tracks = [TextTrack(ResponseTimeline(24_000), normalize) for _ in range(2)]
    for track in tracks:
        for piece in cuts(text, places):
            track.push(piece, 0.0)
            track.flush()
        track.end()
    small, large = (
        [_summary(item) for item in pop_all(track, num_chars)]
        for track, num_chars in zip(tracks, (max_chars, 500), strict=True)
    )
    assert small == large


def _summary(item: TextSegment | FlushItem) -> tuple[object, ...]:
    return (item.flush,) if isinstance(item, FlushItem) else (item.index, item.text, item.closed)


@given(TEXT, st.booleans(), st.integers(1, 60))
def test_a_text_that_has_ended_gives_the_same_segments(text: str, normalize: bool, max_chars: int):
    track = TextTrack(ResponseTimeline(24_000), normalize)
    track.push(text, 0.0)
    track.end()
    segments = [item for item in pop_all(track, max_chars) if isinstance(item, TextSegment) and item.speakable]
    found = [segment.text.rstrip() for segment in segments], [segment.spoken.words.raw_end for segment in segments]
    assert found == read_pieces([text], normalize)[:2]


@pytest.mark.parametrize("normalize", [False, True])
def test_the_last_word_is_read_with_the_text_before_it(normalize: bool):
    track = TextTrack(ResponseTimeline(24_000), normalize)
    track.push("It was good.", 0.0)
    track.end()
    track.read(500)
    segment = track.pop()
    assert isinstance(segment, TextSegment)
    track.end_segment(segment)
    assert segment.text == "It was good."
    assert track.cuts == [], "a replay would read what precedes a cut without its last word"
    assert track.exhausted


def test_a_read_stays_within_its_budget():
    track = TextTrack(ResponseTimeline(24_000), normalize=False)
    for _ in range(5):
        track.push("word ", 0.0)
    assert track.read(12) == 12
    assert track.read(12) == 12
    assert track.read(12) == len(" ") + len("word")
    assert not track.wants_text


def test_flushes_keep_their_place():
    track = TextTrack(ResponseTimeline(24_000), normalize=False)
    track.push("One", 0.0)
    assert track.flush() == 0
    track.push("two three", 0.0)
    track.push(" four", 0.0)
    assert track.flush() == 1
    track.push("🙂", 0.0)
    assert track.flush() == 2
    items = pop_all(track)
    assert [item.text if isinstance(item, TextSegment) else item.flush for item in items] == [
        "One",
        0,
        "two three four",
        1,
        2,
    ]


def test_early_close_leaves_the_unfinished_word_to_the_next():
    track = TextTrack(ResponseTimeline(24_000), normalize=False)
    track.push("One two thr", 0.0)
    (first,) = pop_all(track)
    track.close_early()
    track.push("ee four", 0.0)
    track.end()
    (second,) = pop_all(track)
    assert isinstance(first, TextSegment)
    assert isinstance(second, TextSegment)
    assert (first.text, first.closed, first.is_gathering) == ("One two ", True, False)
    assert (second.text, second.is_gathering) == ("three four", True)


def pushed(pieces: list[str]) -> list[str]:
    words = WordBuffer()
    return [*(words.push(piece).text for piece in pieces), words.flush().text]


@given(TEXT, st.lists(st.integers(0, 1000), max_size=8))
def test_text_as_written_passes_unchanged(text: str, places: list[int]):
    assert "".join(pushed(cuts(text, places))) == text


def test_a_word_waits_for_the_space_behind_it_and_takes_it_along():
    assert pushed(["Hel", "lo", " wor", "ld. "]) == ["", "", "Hello ", "world. ", ""]


def test_letters_of_tracks_without_spaces_pass_at_once():
    assert pushed(["你", "好abc", "。"]) == ["你", "好", "abc。", ""]


def test_a_run_without_end_passes_in_parts():
    assert pushed(["a" * (MAX_HELD_CHARS + 1), "b"]) == ["a" * (MAX_HELD_CHARS + 1), "", "b"]


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


@settings(max_examples=12)
@given(
    units=st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=4),
    places=st.lists(st.integers(0, 49_990), max_size=5),
    normalize=st.booleans(),
)
def test_an_iteration_reads_few_characters_of_any_text(units: list[str], places: list[int], normalize: bool) -> None:
    """Whatever several clients write, in whatever pieces, and flush."""
    assume("".join(units).strip())

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


async def test_create_cancel_loop_starves_none(
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
    for number in range(5):
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


async def test_sessions_take_turns_whatever_they_ask_for(registry: SessionRegistry, reads: Reads) -> None:
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


async def test_segments_begin_with_all_text_that_is_there(registry: SessionRegistry, engine: RecordingEngine) -> None:
    """Reading in several iterations does not show: what the client has written is there when a request begins."""
    text = "word " * 100
    session = registry.create(settings=replace(NORMALIZED, lead_ms=2_000))
    response = session.create_response(text=text, text_closed=True)
    await read(response)
    first: SpeechRequest = engine.requests[0]
    assert first.text_closed
    assert len(first.text) > 3 * MAX_CHARS
