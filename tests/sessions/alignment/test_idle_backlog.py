"""Words are found without anybody asking, a little at a time, in moments at which no packet leaves."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from sessions.alignment import idle_backlog
from sessions.alignment.aligner import Aligner
from sessions.alignment.idle_backlog import IdleAlignmentBacklog
from sessions.alignment.lazy_aligner import CHUNK_SAMPLES, LazyAligner
from sessions.alignment.uniform_aligner import UniformAligner
from sessions.clock import TICK_S, now_s
from tests.sessions.alignment.test_aligner import PCM, RATE, TEXT
from tests.sessions.alignment.test_lazy_aligner import Held, letters

pytestmark = pytest.mark.virtual_time

ENOUGH = 100 * PCM.nbytes
CHUNK = 15_360
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
    monkeypatch.setattr(idle_backlog, "SLICE_S", 0.0)


async def test_all_of_it_is_looked_through_though_nobody_asks() -> None:
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


async def test_whoever_asks_before_that_is_told_the_same() -> None:
    aligner, at_once = LazyAligner(letters, IdleAlignmentBacklog(ENOUGH)), letters()
    for told in (aligner, at_once):
        told.add_text(TEXT)
    for start in range(0, PCM.size, CHUNK):
        for told in (aligner, at_once):
            told.push(PCM[start : start + CHUNK])
        await asyncio.sleep(0.007)
        assert aligner.bounds == at_once.bounds


@pytest.mark.usefixtures("one_piece_a_moment")
async def test_a_piece_at_a_time_half_way_between_ticks() -> None:
    moments, aligners = IdleAlignmentBacklog(ENOUGH), [Watched() for _ in range(3)]
    lines = [LazyAligner(aligner.itself, moments) for aligner in aligners]
    for line in lines:
        line.push(PCM[:CHUNK])
    await asyncio.sleep(LONG_S)
    told = [moment for aligner in aligners for moment in aligner.told]
    assert sum(size for _, size in told) == 3 * CHUNK
    assert max(size for _, size in told) <= CHUNK_SAMPLES
    ticks = [at_s / TICK_S for at_s, _ in told]
    assert [tick % 1 for tick in ticks] == pytest.approx([0.5] * len(ticks), abs=1e-3)
    assert len({int(tick) for tick in ticks}) == len(ticks) == 12


async def test_a_moment_takes_as_many_pieces_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_backlog, "SLICE_S", 60.0)
    aligner = Watched()
    line = LazyAligner(lambda: aligner, IdleAlignmentBacklog(ENOUGH))
    line.push(PCM[:CHUNK])
    await asyncio.sleep(LONG_S)
    assert len(aligner.told) == CHUNK // CHUNK_SAMPLES
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
        line.push(PCM[:CHUNK])
    await asyncio.sleep(LONG_S)
    assert moments.num_bytes == 0
    assert sum(size for _, size in aligner.told) == CHUNK
    assert [type(fault["exception"]) for fault in faults] == [ArithmeticError] * 4


@pytest.mark.usefixtures("one_piece_a_moment")
async def test_what_a_thread_is_at_is_looked_at_after_it() -> None:
    moments, held = IdleAlignmentBacklog(ENOUGH), Held()
    line = LazyAligner(lambda: held, moments)
    line.push(PCM[:CHUNK])
    thread = threading.Thread(target=line.process_next)
    thread.start()
    held.begun.wait(10)
    await asyncio.sleep(LONG_S)
    assert line.num_pending_bytes == CHUNK * 4
    held.go_on.set()
    thread.join()
    await asyncio.sleep(LONG_S)
    assert line.num_pending_bytes == 0


async def test_a_thread_that_is_quicker_leaves_nothing_that_others_wait_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
    other.push(PCM[:CHUNK])
    await asyncio.sleep(LONG_S)
    assert moments.num_bytes == other.num_pending_bytes == 0


async def test_one_that_is_gone_takes_no_room() -> None:
    moments = IdleAlignmentBacklog(ENOUGH)
    line = LazyAligner(letters, moments)
    line.push(PCM)
    del line
    await asyncio.sleep(LONG_S)
    assert moments.num_bytes == 0
