"""The laws of the loop, for both shapes of model: whatever is asked in whatever order, every request says what it
would have said alone, ends once, and leaves nothing behind.
"""

from __future__ import annotations

import dataclasses
import gc
import random
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.api import FinishReason, ResumePoint, SamplingParams, TextLayout
from engine.config import EngineConfig
from engine.runtime.engine import Engine
from engine.runtime.request import Request, RequestPhase, StepBatch
from tests.engine.engine_harness import EngineHarness, RecordedRequest
from tests.fakes.checksum_model import ChecksumFamily, reference_codes
from tests.fakes.cosyvoice_checksum import CosyVoiceChecksumFamily
from tests.fakes.qwen_checksum import QwenChecksumFamily

MAX_TEXT = 24
LIMITS: dict[str, Any] = dict(min_frame_cap=30, frames_per_text_token=6, max_frames=60)
# What one request may grow to: its prefix, its text and its frames.
NEEDED_POSITIONS = 96
letters = st.text("abcdefgh ", min_size=1, max_size=8)


def small_config(**settings: Any) -> EngineConfig:
    usual = dict(num_blocks=40, block_size=8, max_batch_size=4, max_running_requests=6, watermark_blocks=1)
    return EngineConfig(**(LIMITS | usual | settings))


def recorder(shape: ChecksumFamily, **settings: Any) -> EngineHarness:
    config = small_config(**settings)
    return EngineHarness(Engine(shape.make_model(), shape.make_stage(config), config))


def check_says(
    shape: ChecksumFamily, heard: RecordedRequest, text: str, max_frames: int = LIMITS["max_frames"]
) -> None:
    """All of what it says alone, as near as its shape is; a part from the start of it when it was cut from outside."""
    cap = heard.spec.max_frames
    codes, reason = reference_codes(shape.make_model(), heard.spec, text, lambda n: min(cap or 30 + 6 * n, max_frames))
    pcm = shape.pcm(codes)
    if heard.reason in (FinishReason.CANCELLED, FinishReason.ERROR):
        np.testing.assert_allclose(heard.pcm, pcm[: heard.num_samples], rtol=0, atol=shape.pcm_tolerance)
    else:
        assert heard.reason is reason
        np.testing.assert_allclose(heard.pcm, pcm, rtol=0, atol=shape.pcm_tolerance)


def check_lead(shape: ChecksumFamily, bench: EngineHarness, request: Request) -> None:
    """A paced row runs only while one more frame fits into its lead and one chunk. One whose codes were partly received
    samples a frame behind them."""
    if request.spec.lead_ms is not None:
        frame_s = bench.engine.scheduler.frame_s
        ahead_s = request.generated_lead_s(bench.now_s, frame_s) + (0 if request.resumption else frame_s)
        assert ahead_s <= request.spec.lead_ms / 1000 + shape.chunk_frames * frame_s + 1e-6


class EngineLaws(RuleBasedStateMachine):
    """Random orders from many clients, against an engine short of everything."""

    shape: ChecksumFamily

    @initialize(
        num_positions=st.integers(NEEDED_POSITIONS, 2 * NEEDED_POSITIONS),
        block_size=st.sampled_from([1, 3, 8]),
        max_batch_size=st.integers(1, 4),
        max_running_requests=st.integers(2, 6),
        watermark_blocks=st.integers(0, 3),
        max_prefill_positions=st.sampled_from([2, 7, 256]),
        max_cached_prefixes=st.integers(0, 2),
        preempt_margin_s=st.sampled_from([0.0, 0.3]),
    )
    def begin(self, num_positions: int, block_size: int, **settings: Any) -> None:
        num_blocks = -(-num_positions // block_size)
        self.recorder = recorder(self.shape, num_blocks=num_blocks, block_size=block_size, **settings)
        self.recorder.on_batch = self.check_batch
        self.texts: dict[int, str] = {}
        self.open: set[int] = set()
        self.frames_when_starved: dict[int, list[int]] = {}

    # -- what clients do -----------------------------------------------------------------------------------------

    @rule(
        text=letters,
        closed=st.booleans(),
        voice=st.sampled_from(["ada", "bo"]),
        lead_ms=st.sampled_from([None, 0, 100, 700]),
        max_frames=st.one_of(st.none(), st.integers(1, 40)),
        layout=st.sampled_from(list(TextLayout)),
        seeds=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=5),
    )
    def submit(self, text: str, closed: bool, seeds: list[int], **spec: Any) -> None:
        for seed in seeds:
            epoch = self.recorder.submit(text=text, text_closed=closed, sampling=SamplingParams(seed=seed), **spec)
            self.texts[epoch] = text
            if not closed:
                self.open.add(epoch)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), text=letters)
    def push(self, data: st.DataObject, text: str) -> None:
        epoch = data.draw(st.sampled_from(sorted(self.open)))
        if len(self.texts[epoch]) + len(text) <= MAX_TEXT:
            if self.recorder.heard[epoch].end is None:
                self.texts[epoch] += text
            self.recorder.push_text(epoch, text)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        epoch = data.draw(st.sampled_from(sorted(self.open)))
        self.open.remove(epoch)
        self.recorder.end_input(epoch)

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        epoch = data.draw(st.sampled_from(sorted(self.texts)))
        self.recorder.cancel(epoch)
        assert self.recorder.heard[epoch].end is not None

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), pieces=st.booleans())
    def take_over(self, data: st.DataObject, pieces: bool) -> None:
        """What was received goes on as another request, as on another engine; the first one ends."""
        epoch = data.draw(st.sampled_from(sorted(self.texts)))
        heard = self.recorder.heard[epoch]
        point = heard.point
        if heard.end is not None or point is None:
            return
        pcm, text, first = heard.pcm[: point.num_samples], self.texts[epoch], heard.spec.text
        self.recorder.cancel(epoch)
        spec = {name: getattr(heard.spec, name) for name in ("voice", "lead_ms", "max_frames", "layout", "sampling")}
        is_open = epoch in self.open
        closed = heard.spec.text_closed
        new = self.recorder.submit(text=first, text_closed=closed, resume=point, **spec)
        self.recorder.heard[new].before = pcm
        self.texts[new] = text
        if pieces:
            self.step(1)
        if not closed:
            self.recorder.push_text(new, text[len(first) :])
        self.open.discard(epoch)
        if is_open:
            self.open.add(new)
        elif not closed:
            self.recorder.end_input(new)

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), share=st.floats(-0.1, 1.2))
    def report_playback(self, data: st.DataObject, share: float) -> None:
        epoch = data.draw(st.sampled_from(sorted(self.texts)))
        self.recorder.engine.requests.report_playback(epoch, int(share * self.recorder.heard[epoch].num_samples))

    # -- what time does ------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 30))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.recorder.step()
            ended = [heard for heard in self.recorder.heard.values() if heard.end]
            assert all(heard.released for heard in ended), "resources held after a step has passed"
            self.note_starved()

    @rule(seconds=st.floats(0, 1.5))
    def advance(self, seconds: float) -> None:
        self.recorder.now_s += seconds

    def teardown(self) -> None:
        if not hasattr(self, "recorder"):
            return
        for epoch in self.open:
            self.recorder.end_input(epoch)
        self.recorder.run()
        self.recorder.check_idle()
        for epoch, heard in self.recorder.heard.items():
            check_says(self.shape, heard, self.texts[epoch])

    # -- laws ----------------------------------------------------------------------------------------------------

    @invariant()
    def accounts_balance(self) -> None:
        if hasattr(self, "recorder"):
            self.recorder.check_accounts()

    @invariant()
    def admission_is_first_come_first_served(self) -> None:
        if hasattr(self, "recorder"):
            for is_burst in (True, False):
                admitted = [e for e in self.recorder.admitted if self.recorder.heard[e].spec.is_burst == is_burst]
                assert admitted == sorted(admitted)

    def note_starved(self) -> None:
        """Said once a park: from one to the next the row has moved on."""
        for epoch, heard in self.recorder.heard.items():
            noted = self.frames_when_starved.setdefault(epoch, [])
            if len(heard.starved) > len(noted):
                assert len(heard.starved) == len(noted) + 1
                request = self.recorder.row(epoch)
                noted.append(request.num_frames if request else 10**9)
                assert noted[-2:] == sorted(set(noted[-2:])), "starved twice at one place"

    def check_batch(self, batch: StepBatch) -> None:
        in_batch = {work.request.epoch for work in batch.items}
        assert len(in_batch) == len(batch) <= self.recorder.config.max_batch_size
        assert sum(work.count for work in batch.prefills) <= self.recorder.config.max_prefill_positions
        for work in batch.items:
            self.check_work(work.request)
        least_urgent = max((work.request.priority() for work in batch.items), default=(0.0, 0))
        for request in self.recorder.engine.scheduler.running:
            if request.epoch not in in_batch and request.priority() < least_urgent:
                assert self.was_passed_over_for_a_reason(request)

    def check_work(self, request: Request) -> None:
        assert request.phase is RequestPhase.RUNNING
        assert not request.parked or request.has_new_text, "a parked row takes no part in steps"
        assert len(request.block_table) * self.recorder.config.block_size >= request.row.num_computed + 1
        check_lead(self.shape, self.recorder, request)

    def was_passed_over_for_a_reason(self, request: Request) -> bool:
        """No text, at its lead, drained, a prefill too long for this step, or no block for its next position."""
        scheduler = self.recorder.engine.scheduler
        if not scheduler.can_run(request, self.recorder.now_s) or request.parked or request.row.num_due > 1:
            return True
        return len(request.block_table) * self.recorder.config.block_size < request.row.num_computed + max(
            request.row.num_due, 1
        )


class QwenLaws(EngineLaws):
    shape = QwenChecksumFamily()


class CosyVoiceLaws(EngineLaws):
    shape = CosyVoiceChecksumFamily()


LAW_SETTINGS = settings(max_examples=12, stateful_step_count=40)
TestQwenLaws = QwenLaws.TestCase
TestQwenLaws.settings = LAW_SETTINGS
TestCosyVoiceLaws = CosyVoiceLaws.TestCase
TestCosyVoiceLaws.settings = LAW_SETTINGS


# -- another engine goes on --------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_frames", [None, 29])
@pytest.mark.parametrize("closed", [False, True])
def test_another_engine_goes_on_at_the_next_sample(shape: ChecksumFamily, closed: bool, max_frames: int | None) -> None:
    """After any chunk, whether its text is all there, arrives in pieces, or was closed at the start."""
    text, first = "abcdefghijkl", "abcdefghijkl" if closed else "abc"
    spec = dict(text=first, text_closed=closed, sampling=SamplingParams(seed=5), max_frames=max_frames)
    spec |= dict(instruct="stop@40", lead_ms=9000)
    whole = recorder(shape)
    epoch = whole.submit(**spec)
    for piece in (text[3:7], text[7:]) if not closed else ():
        whole.run()
        whole.push_text(epoch, piece)
    whole.end_input(epoch)
    whole.run()
    heard = whole.heard[epoch]
    check_says(shape, heard, text)
    for num_chunks in range(1, len(heard.chunks)):
        received = dataclasses.replace(heard, events=list(heard.chunks[:num_chunks]))
        received.num_samples = received.chunks[-1].start_sample + len(received.chunks[-1].pcm)
        other = recorder(shape)
        other.on_batch = lambda batch, bench=other: [check_lead(shape, bench, work.request) for work in batch.items]
        resumed = other.submit(**(spec | dict(lead_ms=400, resume=received.point)))
        other.heard[resumed].before = received.pcm[: received.point.num_samples]
        other.step()
        for piece in (text[3:5], text[5:]) if not closed else ():
            other.push_text(resumed, piece)
            other.step()
        other.end_input(resumed)
        start_s, again = other.now_s, other.heard[resumed]
        while not again.chunks:
            other.step()
        assert other.now_s == start_s, "its listener may have nothing left"
        other.run()
        other.check_idle()
        check_says(shape, again, text)
        assert again.end.num_frames == heard.end.num_frames


def test_replay_waits_for_no_listener_who_has_it(shape: ChecksumFamily) -> None:
    """All that was played comes at once, then no more than the lead; no codes are lost when its engine dies, too."""
    spec = dict(text="abcdefghijkl", text_closed=True, sampling=SamplingParams(seed=5), instruct="stop@40")
    bench = recorder(shape)
    whole = bench.heard[bench.submit(**spec, lead_ms=9000)]
    bench.run()
    codes, rate = b"".join(chunk.codes for chunk in whole.chunks[:-1]), bench.engine.stage.sample_rate
    other = recorder(shape)
    epoch = other.submit(**spec, lead_ms=400, resume=ResumePoint(codes=codes, num_samples=0))
    played_samples = whole.num_samples // 2
    other.engine.requests.report_playback(epoch, played_samples)
    start_s = other.now_s
    while other.engine.has_work:
        other.step()
    assert other.now_s == start_s
    ahead_s = (other.heard[epoch].num_samples - played_samples) / rate
    lead_s = 0.4 + other.engine.scheduler.chunk_s
    assert lead_s - other.engine.scheduler.chunk_s - 2 * other.engine.scheduler.frame_s <= ahead_s
    other.run()
    check_says(shape, other.heard[epoch], spec["text"])
    assert b"".join(chunk.codes for chunk in other.heard[epoch].chunks) == b"".join(c.codes for c in whole.chunks)


# -- a row's fault is its own ------------------------------------------------------------------------------------

FAULTS = ["next_input@0", "next_input@3", "forward@0", "forward@4", "sample@0", "sample@5", "nan@0", "nan@3", "code@4"]
TEXTS = ["abcdefghijklmnop", "hello there", "xy", "one two three four", "q"]


@pytest.mark.parametrize("fault", [*FAULTS, "decode@2"])
def test_a_fault_ends_its_own_request_alone(shape: ChecksumFamily, fault: str) -> None:
    bench = recorder(shape)
    for index, text in enumerate(TEXTS):
        instruct = fault if index == 1 else ""
        bench.submit(text=text, text_closed=True, instruct=instruct, sampling=SamplingParams(seed=index))
    bench.run()
    bench.check_idle()
    for heard, text in zip(bench.heard.values(), TEXTS, strict=True):
        if heard.spec.instruct:
            assert heard.reason is FinishReason.ERROR
            assert heard.end
            assert heard.end.error.code == "engine_error"
            assert heard.end.error.message
        else:
            assert heard.reason in (FinishReason.STOP, FinishReason.LENGTH)
            check_says(shape, heard, text)


def test_a_request_that_cannot_even_begin_ends_alone(shape: ChecksumFamily) -> None:
    bench = recorder(shape)
    first = bench.submit(text="hello", text_closed=True, sampling=SamplingParams(seed=1))
    for spec in (dict(instruct="new_row@0"), dict(voice="nobody")):
        epoch = bench.submit(text="hello", text_closed=True, **spec)
        assert bench.heard[epoch].reason is FinishReason.ERROR
    bench.run()
    bench.check_idle()
    check_says(shape, bench.heard[first], "hello")
    errors = [heard.end.error for heard in bench.heard.values() if heard.end]
    assert [error and error.code for error in errors] == [None, "engine_error", "unknown_voice"]


@pytest.mark.parametrize("max_running_requests", [1, 64])
def test_however_few_requests_there_may_be_a_long_one_finds_room(
    shape: ChecksumFamily, max_running_requests: int
) -> None:
    """The pool is sized by the number of requests, but one of them may be as long as the model and memory allow."""
    config = EngineConfig(max_running_requests=max_running_requests)
    engine = Engine(shape.make_model(), shape.make_stage(config), config)
    assert engine.requests.capacity == engine.model.max_positions
    scarce = EngineConfig(max_running_requests=max_running_requests, kv_memory_mb=1)
    pool = Engine(shape.make_model(), shape.make_stage(scarce), scarce).pool
    assert pool.num_blocks * 16 * 64 <= 2**20


def test_a_fault_of_the_whole_stage_is_not_hidden(shape: ChecksumFamily, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = recorder(shape)
    bench.submit(text="hello", text_closed=True)

    def step(slack_s: object, wanted_frames: object) -> list[object]:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(bench.engine.stage, "step", step)
    with pytest.raises(RuntimeError, match="the device is gone"):
        bench.run()


def test_idle_engine_that_holds_resources_raises(shape: ChecksumFamily) -> None:
    bench = recorder(shape)
    bench.engine.pool.allocate(1)
    with pytest.raises(AssertionError, match="1 blocks and 0 slots are held"):
        bench.engine.step()


# -- many requests -----------------------------------------------------------------------------------------------


def random_client(bench: EngineHarness, chance: random.Random) -> int:
    """Submit one request of a random kind; texts that stay open are closed or cancelled by ``tend``."""
    return bench.submit(
        text="".join(chance.choices("abcdefgh ", k=chance.randint(1, 20))) + "a",
        text_closed=chance.random() < 0.6,
        voice=chance.choice(["ada", "bo"]),
        lead_ms=chance.choice([None, 0, 300]),
        max_frames=chance.choice([None, 1, 12]),
        instruct=chance.choice(["", "", "", "", "nan@2", "forward@1"]),
        sampling=SamplingParams(seed=chance.randrange(2**64)),
    )


def tend(bench: EngineHarness, chance: random.Random) -> None:
    """A moment in the life of the clients of all running requests."""
    for epoch in list(bench.engine.requests.active):
        action = chance.random()
        if action < 0.02:
            bench.cancel(epoch)
        elif action < 0.1:
            bench.push_text(epoch, "ab")
        elif action < 0.2:
            bench.end_input(epoch)


def soak(bench: EngineHarness, num_requests: int, chance: random.Random) -> None:
    for _ in range(num_requests):
        while len(bench.engine.requests.active) >= 12:
            tend(bench, chance)
            for _ in range(3):
                bench.step()
            bench.now_s += 0.05
        epoch = random_client(bench, chance)
        bench.heard = {e: h for e, h in bench.heard.items() if not h.released or e == epoch}
    for epoch in list(bench.engine.requests.active):
        bench.end_input(epoch)
    bench.run()
    bench.check_idle()


def check_soak(shape: ChecksumFamily, num_requests: int) -> None:
    """Neither objects nor resident memory grow after the first tenth of the requests."""
    bench, chance, process = recorder(shape, max_cached_prefixes=2), random.Random(7), psutil.Process()
    soak(bench, num_requests // 10, chance)
    gc.collect()
    objects, resident = len(gc.get_objects()), process.memory_info().rss
    soak(bench, num_requests - num_requests // 10, chance)
    gc.collect()
    assert len(gc.get_objects()) - objects < 200
    assert process.memory_info().rss - resident < 20 * 2**20


def test_memory_stays_flat_over_many_requests(shape: ChecksumFamily) -> None:
    check_soak(shape, 40 if shape.name == "cosyvoice3" else 120)  # whose flow takes ten times as long


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_memory_stays_flat_over_10_000_requests(shape: ChecksumFamily) -> None:
    check_soak(shape, 10_000)
