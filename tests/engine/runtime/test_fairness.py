"""Paced requests beside burst requests, in virtual time, on the plain engine and on the one over static buffers."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from engine.api import EngineOverloaded, ResumePoint, SamplingParams, SpeechRequest
from engine.config import EngineConfig
from engine.errors import OVERLOAD_RETRY_MS
from engine.load import load_engine
from engine.runtime.admission import FairShares, QueueLimits, RequestCounts, StepBudget
from engine.runtime.engine import Engine
from engine.runtime.request import StepBatch
from engine.runtime.step_model import StepModel
from tests.engine.engine_harness import EngineHarness
from tests.engine.runtime.test_engine import recorder as shaped_recorder
from tests.engine.runtime.test_step_model import learnt
from tests.fakes.qwen_checksum import QwenChecksumFamily

TEXT = "the quick brown fox jumps over the lazy dog"
# Of a simulated step: 35 rows take 80 ms, the time of a frame.
BASE_S, ROW_S, POSITION_S = 0.010, 0.002, 0.0003
MAX_GAP_S = 0.05
FRAME_S = 0.08
# Requests that have ended are replaced so often; at most about a step late.
ARRIVAL_S = 0.2


def make_engine(folder: Path, config: EngineConfig) -> Engine:
    """Make an engine whose codes say nothing: of the shaped model, or over graphs of the checkpoint."""
    if config.graphs:
        return load_engine(folder, config, "cpu", "float32", is_embedded=False).make_engine()
    shape = QwenChecksumFamily()
    return Engine(shape.make_model(), shape.make_stage(config), config)


class SimulatedEngine(EngineHarness):
    """An engine whose steps take virtual time by what they compute; listeners play in the same time."""

    def __init__(self, folder: Path, graphs: bool) -> None:
        config = EngineConfig(
            num_blocks=2_000, block_size=8, max_batch_size=40, max_running_requests=64, max_frames=40, min_frame_cap=40,
            watermark_blocks=0, lazy_graph_capture=True, graphs=graphs, admission_utilization=1e3,
        )  # fmt: skip
        super().__init__(make_engine(folder, config))
        self.frame_samples = int(FRAME_S * self.engine.stage.sample_rate)
        self.models = {
            id(model): model for model in (self.engine.scheduler.step_model, self.engine.scheduler.burst_model)
        }
        for model in self.models.values():
            model.note_step = self._ignore  # type: ignore[method-assign]
        self.on_batch = self._pass_time
        self.asked_s: dict[int, float] = {}
        self.first_s: dict[int, float] = {}
        self.dry_s: dict[int, float] = {}
        self.gaps_s: list[float] = []
        self.lead_ms = 2_000
        # Times that the next step is longer than foreseen.
        self.slowdown: Callable[[], float] = lambda: 1.0
        self.num_steps_without_bursts = 0
        self.busy_s = 0.0
        self.num_frames: Counter[str] = Counter()

    def _ignore(self, batch: StepBatch, seconds: float) -> None:
        """The host's own time teaches nothing here."""

    def _pass_time(self, batch: StepBatch) -> None:
        positions = batch.num_prefill_positions
        self.step_s = BASE_S + ROW_S * len(batch) + POSITION_S * positions if len(batch) else 0.001
        self.step_s *= self.slowdown()
        self.num_steps_without_bursts += not any(work.request.is_burst for work in batch.items)
        for model in self.models.values():
            StepModel.note_step(model, batch, self.step_s)

    def speak(self, lead_ms: int | None, group: str, seed: int, asked_s: float) -> int:
        """Submit a request that has arrived at ``asked_s``, in the step that has just ended."""
        sampling = SamplingParams(seed=seed, min_new_tokens=40)
        spec = dict(text=TEXT, text_closed=True, lead_ms=lead_ms, group=group, sampling=sampling, max_frames=40)
        if not self.config.graphs:
            spec["instruct"] = "stop@40"
        epoch = self.submit(**spec)
        self.asked_s[epoch] = asked_s
        return epoch

    def collect(self) -> None:
        before = {epoch: heard.num_samples for epoch, heard in self.heard.items() if heard.end is None}
        super().collect()
        for epoch, num_samples in before.items():
            fresh = self.heard[epoch].num_samples - num_samples
            if fresh:
                self._play(epoch, fresh)

    def _play(self, epoch: int, num_samples: int) -> None:
        spec = self.heard[epoch].spec
        self.num_frames[spec.group] += num_samples // self.frame_samples
        if spec.is_burst:
            return
        self.first_s.setdefault(epoch, self.now_s)
        dry_s = self.dry_s.get(epoch, self.now_s)
        self.gaps_s.append(max(0.0, self.now_s - dry_s))
        self.dry_s[epoch] = max(dry_s, self.now_s) + num_samples / self.engine.stage.sample_rate

    def run_for(self, seconds: float, num_paced: int, bursts: dict[str, int]) -> None:
        """Keep so many listeners and so many burst requests of each group active."""
        asked_s, end_s, serial = self.now_s, self.now_s + seconds, 0
        while self.now_s < end_s:
            active = Counter((request.is_burst, request.spec.group) for request in self.engine.requests.active.values())
            wanted = {(False, "live"): num_paced} | {(True, group): count for group, count in bursts.items()}
            for (is_burst, group), count in wanted.items():
                for _ in range(count - active[is_burst, group]):
                    serial += 1
                    self.speak(None if is_burst else self.lead_ms, group, serial, asked_s)
            asked_s += ARRIVAL_S
            self._run_until(asked_s)

    def _run_until(self, moment_s: float) -> None:
        self.run(until=lambda: self.now_s >= moment_s)

    def step(self) -> None:
        began_s, num_rows = self.now_s, self.engine.times.num_rows
        super().step()
        self.busy_s += self.now_s - began_s if self.engine.times.num_rows > num_rows else 0.0

    def ttfa_s(self) -> list[float]:
        return sorted(first_s - self.asked_s[epoch] for epoch, first_s in self.first_s.items())


# The scheduler decides, and it is the same on both paths.
@pytest.fixture(params=[pytest.param(False, id="plain"), pytest.param(True, id="graphs", marks=pytest.mark.slow)])
def engine(request: pytest.FixtureRequest, tiny_folder: Path) -> SimulatedEngine:
    return SimulatedEngine(tiny_folder, request.param)


def test_burst_requests_take_only_what_paced_ones_leave(engine: SimulatedEngine, tiny_folder: Path) -> None:
    paced, bursts = (SimulatedEngine(tiny_folder, engine.config.graphs is True) for _ in range(2))
    paced.run_for(1.0, 4, {})
    bursts.run_for(1.5, 0, {"bulk": 40})
    engine.run_for(2.5, 4, {"bulk": 40})
    assert max(engine.gaps_s) <= MAX_GAP_S
    newcomers_s = [first_s - engine.asked_s[epoch] for epoch, first_s in engine.first_s.items() if epoch > 44]
    assert newcomers_s
    assert max(newcomers_s) <= 2 * max(paced.ttfa_s()) + BASE_S
    burst_rate, live_rate = engine.num_frames["bulk"] / 2.5, engine.num_frames["live"] / 2.5
    assert burst_rate >= 0.8 * (bursts.num_frames["bulk"] / 1.5 - live_rate)


def test_groups_get_equal_shares_whatever_they_ask_for(engine: SimulatedEngine) -> None:
    engine.run_for(1.5, 2, {"many": 24, "few": 12})
    assert engine.num_frames["few"] > 0.75 * engine.num_frames["many"]


@pytest.mark.parametrize("lead_ms", [0, 50, 200])
def test_short_leads_leave_no_time_unused(lead_ms: int, tiny_folder: Path) -> None:
    engine = SimulatedEngine(tiny_folder, False)
    engine.lead_ms = lead_ms
    began_s = engine.now_s
    engine.run_for(1.5, 1, {"bulk": 8})
    assert engine.busy_s >= 0.85 * (engine.now_s - began_s)


def test_first_audio_keeps_bursts_out_of_few_steps(engine: SimulatedEngine) -> None:
    engine.run_for(1.0, 0, {"bulk": 40})
    num_before = engine.num_steps_without_bursts
    engine.run_for(0.6, 1, {"bulk": 40})
    num_steps = engine.num_steps_without_bursts - num_before
    assert 1 <= num_steps <= 3, "one to the first audio, and two more until 150 ms are in hand"


@pytest.mark.parametrize("share", [0.1, 1.0], ids=["now and then", "always"])
def test_listeners_are_on_time_beside_a_busy_core(share: float, tiny_folder: Path) -> None:
    """A step takes three times as long as foreseen, now and then or from one moment on."""
    engine, rng = SimulatedEngine(tiny_folder, False), random.Random(1)
    engine.run_for(1.0, 1, {"bulk": 40})
    engine.slowdown = lambda: 3.0 if rng.random() < share else 1.0
    engine.run_for(2.0, 3, {"bulk": 40})
    assert max(engine.gaps_s) <= MAX_GAP_S


# -- the parts ---------------------------------------------------------------------------------------------------


def test_newcomer_gets_a_slot_before_waiting_burst_requests() -> None:
    bench = shaped_recorder(QwenChecksumFamily(), max_running_requests=4)
    bursts = [bench.submit(text="abc", text_closed=True) for _ in range(8)]
    bench.step()
    paced = bench.submit(text="abc", text_closed=True, lead_ms=2_000)
    bench.step()
    assert bench.request(paced).slot is not None, "a quarter of the slots is for paced requests"
    assert sum(bench.request(row).slot is not None for row in bursts if bench.row(row)) == 3
    stats = bench.engine.stats()
    assert (stats.num_waiting, stats.num_waiting_burst) == (5, 5)


@pytest.mark.parametrize(("max_running_requests", "num_reserved"), [(1, 0), (2, 1), (3, 1), (4, 1), (8, 2)])
def test_burst_requests_leave_slots_for_paced_ones(
    max_running_requests: int, num_reserved: int, tiny_folder: Path
) -> None:
    for engine in (
        shaped_recorder(QwenChecksumFamily(), max_running_requests=max_running_requests),
        graph_recorder(tiny_folder, max_running_requests),
    ):
        for _ in range(2 * max_running_requests):
            engine.submit(text="abc", text_closed=True)
        engine.step()
        running = engine.engine.scheduler.running
        assert len(running) == max_running_requests - num_reserved
        newcomers = [engine.submit(text="abc", text_closed=True, lead_ms=2_000) for _ in range(num_reserved)]
        engine.step()
        assert len(running) == max_running_requests
        assert all(engine.request(newcomer) in running for newcomer in newcomers)


def graph_recorder(folder: Path, max_running_requests: int) -> EngineHarness:
    config = EngineConfig(
        num_blocks=200, block_size=8, max_batch_size=8, max_running_requests=max_running_requests,
        max_queued_requests=16,
        watermark_blocks=0,
        lazy_graph_capture=True, graphs=True, admission_utilization=1e3,
    )  # fmt: skip
    return EngineHarness.from_checkpoint(load_engine(folder, config, "cpu", "float32", is_embedded=False))


def test_slots_go_to_the_group_that_holds_fewest() -> None:
    bench = shaped_recorder(QwenChecksumFamily(), max_running_requests=4)
    many = [bench.submit(text="abc" * 9, text_closed=True, group="many") for _ in range(6)]
    few = bench.submit(text="abc", text_closed=True, group="few")
    bench.step()
    assert bench.admitted == [many[0], few, many[1]]


def test_paced_rows_do_not_wait_for_blocks_of_burst_rows() -> None:
    bench = shaped_recorder(QwenChecksumFamily(), num_blocks=20, watermark_blocks=18)
    for _ in range(2):
        bench.submit(text="abcdefgh" * 3, text_closed=True)
    bench.step()
    bench.step()
    paced = bench.submit(text="abc", text_closed=True, lead_ms=2_000)
    bench.step()
    assert bench.request(paced).slot is not None


def test_burst_queue_is_bounded_by_class_and_group() -> None:
    room, counts = QueueLimits.from_config(EngineConfig(max_running_requests=4, max_queued_requests=4)), RequestCounts()
    assert (room.new, room.for_burst, room.for_burst_of_group) == (8, 6, 4)
    for _ in range(4):
        counts.add(SpeechRequest(request_id="r", group="one"))
    with pytest.raises(EngineOverloaded, match="4 burst requests of one client are active; the limit is 4") as caught:
        room.check(counts, SpeechRequest(request_id="r", group="one"))
    assert caught.value.retry_after_ms == OVERLOAD_RETRY_MS
    for _ in range(2):
        room.check(counts, SpeechRequest(request_id="r", group="two"))
        counts.add(SpeechRequest(request_id="r", group="two"))
    with pytest.raises(EngineOverloaded, match="6 burst requests are active; the limit is 6"):
        room.check(counts, SpeechRequest(request_id="r", group="three"))
    room.check(counts, SpeechRequest(request_id="r", group="one", lead_ms=2_000))
    room.check(counts, SpeechRequest(request_id="r", group="one", segment=1))
    room.check(counts, SpeechRequest(request_id="r", group="one", resume=ResumePoint(codes=b"", num_samples=1)))


def test_budget_grows_step_by_step_before_the_model_is_known() -> None:
    assert StepBudget(StepModel(), 1.0, 40).fits(2, 0, is_first=False)
    assert not StepBudget(StepModel(), 1.0, 40).fits(3, 0, is_first=False)
    budget = StepBudget(learnt(0.010, 0.001, [1, 2, 4] * 10), 1.0, 40)
    assert budget.fits(8, 0, is_first=False)
    assert not budget.fits(9, 0, is_first=False), "more than twice what was measured"


@pytest.mark.parametrize(("fixed_s", "num_rows"), [(0.004, 41), (0.008, 45), (0.012, 48), (0.1, 102)])
def test_budget_follows_the_fixed_part_of_a_step(fixed_s: float, num_rows: int) -> None:
    """45 ms, 15 % fixed, at most 60 ms, or two steps of one row."""
    budget = StepBudget(learnt(fixed_s, 0.001, [1, 2, 4, 8, 16, 32, 64, 128] * 10), 1.0, 200)
    assert budget.fits(num_rows - 1, 0, is_first=False)
    assert not budget.fits(num_rows + 1, 0, is_first=False)


def test_budget_counts_prompts_and_lets_one_row_pass_within_the_slack() -> None:
    model = learnt(0.006, 0.001, [1, 2, 4, 8, 16, 32] * 10)
    model.note_prefill(1, 100, 0.007 + 0.1)
    budget = StepBudget(model, 0.2, 40)
    assert budget.fits(38, 0, is_first=False)
    assert not budget.fits(40, 0, is_first=False)
    assert budget.fits(28, 10, is_first=False)
    assert not budget.fits(30, 10, is_first=False)
    assert budget.fits(2, 150, is_first=True)
    assert not budget.fits(2, 195, is_first=True)
    assert StepBudget(model, float("inf"), 40).fits(40, 10_000, is_first=False)


def test_shares_of_a_new_group_begin_where_the_others_are() -> None:
    bench = shaped_recorder(QwenChecksumFamily(), max_running_requests=8)
    rows = {name: bench.submit(text="abc", text_closed=True, group=name) for name in "abc"}
    requests = {name: bench.request(row) for name, row in rows.items()}
    shares = FairShares()
    for _ in range(10):
        first, *_ = shares.order([requests["a"], requests["b"]])
        shares.record([first])
    taken: Counter[str] = Counter()
    for _ in range(30):
        first, *_ = shares.order(requests.values())
        shares.record([first])
        taken[first.spec.group] += 1
    assert taken == {"a": 10, "b": 10, "c": 10}


def test_groups_that_come_again_begin_as_equals() -> None:
    """One was given three times as much before."""
    bench = shaped_recorder(QwenChecksumFamily(), max_running_requests=8, max_batch_size=4)
    for group in "aaac":
        bench.submit(text="abcdefgh", text_closed=True, group=group, max_frames=3)
    bench.run()
    scheduler = bench.engine.scheduler
    scheduler.config = msgspec.structs.replace(scheduler.config, max_batch_size=1)
    for group in "ac":
        bench.submit(text="abcdefgh" * 3, text_closed=True, group=group)
    bench.keep_batches = True
    while len(bench.batches) < 6:
        bench.step()
    assert [work.request.spec.group for batch in bench.batches for work in batch.items] == [*"acacac"]


def test_burst_row_without_blocks_is_still_decoded(tiny_folder: Path) -> None:
    """No slot is free for the one that waits, and the other is at its lead: steps get somewhere, or there are none."""
    config = EngineConfig(
        num_blocks=80, block_size=1, watermark_blocks=0, max_running_requests=2, max_frames=40, min_frame_cap=20,
        lazy_graph_capture=True, max_cached_prefixes=0,
    )  # fmt: skip
    bench = EngineHarness.from_checkpoint(load_engine(tiny_folder, config, "cpu", "float32", is_embedded=False))
    sampling = SamplingParams(seed=1, min_new_tokens=20)
    bench.submit(text=TEXT, text_closed=True, max_frames=20, sampling=sampling)
    bench.step()
    for _ in range(2):
        bench.submit(text=TEXT, text_closed=True, lead_ms=2_000, max_frames=40, sampling=sampling)
    bench.run()
    bench.check_idle()
    assert bench.engine.times.num_steps < 1_000
