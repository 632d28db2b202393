"""Speech that is aligned later, when asked or in idle moments, gives what aligning at once gives."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessions.alignment import lazy_aligner
from sessions.alignment.aligner import Aligner, ForcedAligner
from sessions.alignment.lazy_aligner import CHUNK_SAMPLES, AlignmentBacklog, IdleAlignmentBacklog, LazyAligner
from sessions.alignment.uniform_aligner import UniformAligner
from sessions.clock import TICK_S, now_s
from tests.sessions.alignment.test_aligner import PCM, RATE, TEXT

pytestmark = pytest.mark.virtual_time

CHUNK = 3_200
NUM_CHUNKS = -(-PCM.size // CHUNK)
KEPT = 100 * PCM.nbytes


def letters() -> Aligner:
    return ForcedAligner(RATE)


class Held(UniformAligner):
    """Is in no hurry: it looks at a piece only once it may go on."""

    def __init__(self) -> None:
        super().__init__(RATE)
        self.begun, self.go_on = threading.Event(), threading.Event()

    def push(self, pcm: np.ndarray) -> None:
        self.begun.set()
        self.go_on.wait(10)
        super().push(pcm)


def late(max_bytes: int = KEPT, make: Callable[[], Aligner] = letters) -> tuple[LazyAligner, AlignmentBacklog]:
    backlog = AlignmentBacklog(max_bytes)
    return LazyAligner(make, backlog), backlog


def chunk(number: int) -> np.ndarray:
    return PCM[number * CHUNK : (number + 1) * CHUNK]


@given(
    st.lists(st.integers(0, NUM_CHUNKS - 1), min_size=3, max_size=3),
    st.sets(st.integers(0, NUM_CHUNKS), max_size=4),
    st.sampled_from([0, 3 * CHUNK * 4, KEPT]),
    st.booleans(),
)
@settings(deadline=None, max_examples=15)
def test_late_answers_equal_those_of_aligning_at_once(text_moments, questions, max_bytes, finishes):
    (asked_late, _), at_once = late(max_bytes), letters()
    places = [0, len(TEXT) // 3, 2 * len(TEXT) // 3, len(TEXT)]
    texts = dict(zip(sorted(text_moments), [TEXT[a:b] for a, b in itertools.pairwise(places)], strict=True))
    for number in range(NUM_CHUNKS):
        for aligner in (asked_late, at_once):
            aligner.add_text(texts.get(number, ""))
            aligner.push(chunk(number))
        if number in questions:
            assert asked_late.bounds == at_once.bounds
            assert asked_late.estimate() == at_once.estimate()
    if finishes:
        asked_late.finish()
        at_once.finish()
    else:
        asked_late.end_input()
    assert asked_late.estimate() == at_once.estimate()
    assert asked_late.bounds == at_once.estimate()


def test_aligner_is_made_when_asked_and_keeps_nothing_after():
    made: list[Aligner] = []
    aligner, backlog = late(make=lambda: made.append(letters()) or made[-1])
    aligner.add_text(TEXT)
    aligner.push(PCM)
    aligner.finish()
    assert not made
    assert backlog.num_bytes == aligner.num_pending_bytes == PCM.nbytes
    assert len(aligner.bounds) == len(TEXT) + 1
    assert len(made) == 1
    assert backlog.num_bytes == aligner.num_pending_bytes == 0


def test_pending_input_is_nothing_that_a_garbage_collection_visits():
    aligner, _ = late()
    gc.collect()
    num_before = len(gc.get_objects())
    for _ in range(100):
        aligner.add_text("word ")
        aligner.push(chunk(0))
    assert len(gc.get_objects()) < num_before + 100


def test_oldest_audio_is_aligned_beyond_the_limit():
    backlog = AlignmentBacklog(10 * CHUNK * 4)
    first, second = (LazyAligner(partial(UniformAligner, RATE), backlog) for _ in range(2))
    for aligner in (first, second):
        aligner.add_text("ten chunks")
        for number in range(10):
            aligner.push(chunk(number))
            assert backlog.num_bytes <= backlog.max_bytes
    assert (first.num_pending_bytes, second.num_pending_bytes) == (0, backlog.max_bytes)


def test_audio_is_aligned_as_it_comes_with_a_limit_of_zero():
    aligner, backlog = late(0)
    aligner.add_text(TEXT)
    aligner.push(PCM)
    assert backlog.num_bytes == 0


def test_one_that_is_gone_takes_no_room():
    backlog = AlignmentBacklog(3 * CHUNK * 4)
    gone, stays = (LazyAligner(letters, backlog) for _ in range(2))
    gone.push(chunk(0))
    gone.push(chunk(1))
    del gone
    gc.collect()
    for number in range(3):
        stays.push(chunk(number))
    assert stays.num_pending_bytes == backlog.num_bytes == backlog.max_bytes


def test_one_that_is_forgotten_keeps_nothing_and_takes_nothing():
    aligner, backlog = late()
    aligner.add_text(TEXT)
    aligner.push(PCM)
    aligner.discard()
    aligner.push(PCM)
    assert backlog.num_bytes == 0
    assert aligner.bounds == []


def test_what_comes_while_a_thread_looks_is_looked_at_after_it():
    held = Held()
    aligner, backlog = late(2 * CHUNK * 4, lambda: held)
    aligner.add_text("ab")
    aligner.push(chunk(0))
    thread = threading.Thread(target=aligner.process_all)
    thread.start()
    held.begun.wait(10)
    for number in range(1, 4):
        aligner.push(chunk(number))  # beyond the limit, and yet it waits for nobody
    assert backlog.num_bytes > backlog.max_bytes
    held.go_on.set()
    aligner.finish()
    thread.join()
    assert aligner.bounds == [0, 2 * CHUNK, 4 * CHUNK]
    assert backlog.num_bytes == 0


@pytest.mark.parametrize("end", [LazyAligner.end_input, LazyAligner.finish])
def test_after_the_end_nothing_changes(end):
    aligner, _ = late(make=lambda: UniformAligner(RATE))
    aligner.add_text("ab")
    aligner.push(PCM)
    end(aligner)
    known = aligner.estimate()
    aligner.push(PCM)
    aligner.add_text("c")
    assert aligner.estimate() == known


def test_discard_waits_for_one_piece_at_most():
    begun, go_on, num_heard = threading.Event(), threading.Event(), 0

    class Slow(UniformAligner):
        def push(self, pcm: np.ndarray) -> None:
            nonlocal num_heard
            num_heard += 1
            begun.set()
            go_on.wait(10)

    aligner, backlog = late(make=lambda: Slow(RATE))
    for number in range(4):
        aligner.push(chunk(number))
    looks, forgets = (threading.Thread(target=work) for work in (aligner.process_all, aligner.discard))
    looks.start()
    begun.wait(10)
    forgets.start()
    forgets.join(0.2)
    go_on.set()
    looks.join()
    forgets.join()
    assert num_heard == 1
    assert backlog.num_bytes == 0


def test_speech_that_cannot_be_looked_through_takes_no_room():
    class Broken(UniformAligner):
        def push(self, pcm: np.ndarray) -> None:
            raise ArithmeticError

    aligner, backlog = late(CHUNK * 4, lambda: Broken(RATE))
    aligner.push(chunk(0))
    with pytest.raises(ArithmeticError):
        aligner.push(chunk(1))
    assert aligner.num_pending_bytes == backlog.num_bytes == CHUNK * 4


ENOUGH = 100 * PCM.nbytes
IDLE_CHUNK = 15_360
LONG_S = 1.0


class Watched(UniformAligner):
    """Notes when it is told of how much speech."""

    def __init__(self) -> None:
        super().__init__(RATE)
        self.told: list[tuple[float, int]] = []

    def itself(self) -> Watched:
        return self

    def push(self, pcm: np.ndarray) -> None:
        self.told.append((now_s(), pcm.size))
        super().push(pcm)


@pytest.fixture
def one_piece_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_aligner, "SLICE_S", 0.0)


async def test_everything_is_checked_without_a_request() -> None:
    made: list[Aligner] = []
    moments = IdleAlignmentBacklog(ENOUGH)
    aligner = LazyAligner(lambda: made.append(letters()) or made[-1], moments)
    at_once = letters()
    for told in (aligner, at_once):
        told.add_text(TEXT)
        told.push(PCM)
    assert not made
    await asyncio.sleep(LONG_S)
    assert made
    assert moments.num_bytes == aligner.num_pending_bytes == 0
    assert aligner.bounds == at_once.bounds
    assert aligner.estimate() == at_once.estimate()


async def test_earlier_query_gives_the_same_answer() -> None:
    aligner, at_once = LazyAligner(letters, IdleAlignmentBacklog(ENOUGH)), letters()
    for told in (aligner, at_once):
        told.add_text(TEXT)
    for start in range(0, PCM.size, IDLE_CHUNK):
        for told in (aligner, at_once):
            told.push(PCM[start : start + IDLE_CHUNK])
        await asyncio.sleep(0.007)
        assert aligner.bounds == at_once.bounds


@pytest.mark.usefixtures("one_piece_a_moment")
async def test_a_piece_at_a_time_half_way_between_ticks() -> None:
    moments, aligners = IdleAlignmentBacklog(ENOUGH), [Watched() for _ in range(3)]
    lines = [LazyAligner(aligner.itself, moments) for aligner in aligners]
    for line in lines:
        line.push(PCM[:IDLE_CHUNK])
    await asyncio.sleep(LONG_S)
    told = [moment for aligner in aligners for moment in aligner.told]
    assert sum(size for _, size in told) == 3 * IDLE_CHUNK
    assert max(size for _, size in told) <= CHUNK_SAMPLES
    ticks = [at_s / TICK_S for at_s, _ in told]
    assert [tick % 1 for tick in ticks] == pytest.approx([0.5] * len(ticks), abs=1e-3)
    assert len({int(tick) for tick in ticks}) == len(ticks) == 12


async def test_a_moment_takes_as_many_pieces_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_aligner, "SLICE_S", 60.0)
    aligner = Watched()
    line = LazyAligner(lambda: aligner, IdleAlignmentBacklog(ENOUGH))
    line.push(PCM[:IDLE_CHUNK])
    await asyncio.sleep(LONG_S)
    assert len(aligner.told) == IDLE_CHUNK // CHUNK_SAMPLES
    assert len({at_s for at_s, _ in aligner.told}) == 1


async def test_beyond_the_limit_it_does_not_wait() -> None:
    aligner = Watched()
    line = LazyAligner(lambda: aligner, IdleAlignmentBacklog(2 * CHUNK_SAMPLES * 4))
    line.push(PCM[: 5 * CHUNK_SAMPLES])
    assert len(aligner.told) == 3


async def test_speech_that_cannot_be_looked_through_holds_up_no_other() -> None:
    class Broken(UniformAligner):
        def push(self, pcm: np.ndarray) -> None:
            raise ArithmeticError

    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    moments, aligner = IdleAlignmentBacklog(ENOUGH), Watched()
    broken, whole = LazyAligner(lambda: Broken(RATE), moments), LazyAligner(lambda: aligner, moments)
    for line in (broken, whole):
        line.push(PCM[:IDLE_CHUNK])
    await asyncio.sleep(LONG_S)
    assert moments.num_bytes == 0
    assert sum(size for _, size in aligner.told) == IDLE_CHUNK
    assert [type(fault["exception"]) for fault in faults] == [ArithmeticError] * 4


@pytest.mark.usefixtures("one_piece_a_moment")
async def test_what_a_thread_is_at_is_looked_at_after_it() -> None:
    moments, held = IdleAlignmentBacklog(ENOUGH), Held()
    line = LazyAligner(lambda: held, moments)
    line.push(PCM[:IDLE_CHUNK])
    thread = threading.Thread(target=line.process_next)
    thread.start()
    held.begun.wait(10)
    await asyncio.sleep(LONG_S)
    assert line.num_pending_bytes == IDLE_CHUNK * 4
    held.go_on.set()
    thread.join()
    await asyncio.sleep(LONG_S)
    assert line.num_pending_bytes == 0


async def test_quicker_thread_blocks_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    moments, aligner = IdleAlignmentBacklog(ENOUGH), Watched()
    quick, other = LazyAligner(letters, moments), LazyAligner(lambda: aligner, moments)
    count = moments.add

    def count_late(*of: Any) -> None:
        thread = threading.Thread(target=quick.process_all)
        thread.start()
        thread.join()
        count(*of)

    monkeypatch.setattr(moments, "add", count_late)
    quick.push(PCM[:CHUNK_SAMPLES])
    monkeypatch.undo()
    other.push(PCM[:IDLE_CHUNK])
    await asyncio.sleep(LONG_S)
    assert moments.num_bytes == other.num_pending_bytes == 0


async def test_one_that_is_gone_takes_no_room_of_idle_work() -> None:
    moments = IdleAlignmentBacklog(ENOUGH)
    line = LazyAligner(letters, moments)
    line.push(PCM)
    del line
    await asyncio.sleep(LONG_S)
    assert moments.num_bytes == 0
