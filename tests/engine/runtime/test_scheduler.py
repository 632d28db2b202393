"""Who runs, who waits, and whose blocks pay: each rule alone, on both shapes of model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.api import FinishReason, SamplingParams, TextLayout
from engine.models.base import AwaitText, SequenceState, TalkerInputs
from engine.runtime import scheduler
from engine.runtime.request import Request
from engine.runtime.scheduler import Scheduler
from tests.engine.engine_harness import EngineHarness, RecordedRequest
from tests.engine.runtime.test_engine import check_says as check_says_within
from tests.engine.runtime.test_engine import recorder as usual_recorder
from tests.fakes.checksum_model import ChecksumFamily
from tests.fakes.cosyvoice_checksum import CosyVoiceChecksumFamily

LONG = "abcdefgh" * 3
FIRST_WORDS = "abcdefghij" * 2


def recorder(shape: ChecksumFamily, **settings: Any) -> EngineHarness:
    return usual_recorder(shape, **({"max_frames": 100} | settings))


def check_says(shape: ChecksumFamily, heard: RecordedRequest, text: str) -> None:
    check_says_within(shape, heard, text, max_frames=100)


def speak(bench: EngineHarness, text: str = LONG, **spec: Any) -> int:
    """Closed text, and 90 frames of speech."""
    spec = {"text_closed": True, "instruct": "stop@90", "sampling": SamplingParams(seed=len(bench.heard))} | spec
    return bench.submit(text=text, **spec)


def works_of_next_step(bench: EngineHarness) -> list[int]:
    """Epochs in the batch, in the order of urgency they were picked in."""
    bench.keep_batches, bench.batches = True, []
    bench.step()
    return [work.request.epoch for work in bench.batches[0].items]


def run_until_heard(bench: EngineHarness, epoch: int, num_samples: int = 1) -> None:
    bench.run(until=lambda: bench.heard[epoch].num_samples >= num_samples)


# -- first chunks ------------------------------------------------------------------------------------------------


def start_first_chunks(**settings: Any) -> tuple[EngineHarness, list[int]]:
    """Two requests, the only ones, whose first chunks are being made."""
    bench = recorder(CosyVoiceChecksumFamily(), **settings)
    rows = [speak(bench) for _ in range(2)]
    bench.step()
    stage = bench.engine.stage
    bench.run(until=lambda: all(stage.makes_first_chunk(bench.request(row).held_slot) for row in rows))
    return bench, rows


def test_the_talker_waits_while_all_wait_for_first_chunks() -> None:
    bench, rows = start_first_chunks()
    assert works_of_next_step(bench) == []
    for row in rows:
        run_until_heard(bench, row)
    assert works_of_next_step(bench) == rows
    bench.run()
    for row in rows:
        check_says(CosyVoiceChecksumFamily(), bench.heard[row], LONG)


def test_the_talker_does_not_wait_for_first_chunks_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "MAX_ROWS_IN_WAIT", 1)
    bench, rows = start_first_chunks()
    assert works_of_next_step(bench) == rows


def test_a_request_that_lacks_frames_waits_for_no_first_chunk() -> None:
    bench, rows = start_first_chunks()
    newcomer = speak(bench)
    assert set(works_of_next_step(bench)) == {*rows, newcomer}


def test_the_talker_goes_on_beside_first_chunks_where_that_is_set() -> None:
    bench, rows = start_first_chunks(first_chunks_alone=False)
    assert works_of_next_step(bench) == rows


# -- urgency -----------------------------------------------------------------------------------------------------


def test_first_audio_comes_before_every_deadline(shape: ChecksumFamily) -> None:
    bench = recorder(shape, max_batch_size=1, max_running_requests=3)
    heard_already = speak(bench)
    run_until_heard(bench, heard_already)
    newcomer = speak(bench)
    bench.now_s += 60.0  # the first listener has long run dry
    assert works_of_next_step(bench) == [newcomer]


def test_row_with_the_earliest_underrun_steps_first(shape: ChecksumFamily) -> None:
    bench = recorder(shape, max_batch_size=2, max_running_requests=4)
    rows = [speak(bench) for _ in range(3)]
    for row in rows:
        run_until_heard(bench, row)
    now_s = bench.now_s
    for row, dry_in_s in zip(rows, (0.3, 0.1, 0.2), strict=True):
        bench.request(row).clock.dry_at_s = now_s + dry_in_s
    assert works_of_next_step(bench) == [rows[1], rows[2]]


def test_rows_that_a_step_has_no_room_for_are_not_asked_for_input(
    shape: ChecksumFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = recorder(shape, max_batch_size=2, max_running_requests=4)
    rows, asked = [speak(bench, lead_ms=500) for _ in range(4)], set[int]()
    for row in rows:
        run_until_heard(bench, row)
    for number, row in enumerate(rows, 1):
        bench.request(row).clock.dry_at_s = bench.now_s + 0.1 * number
    scheduler = bench.engine.scheduler
    fetch = scheduler.fetch_input

    def fetch_noted(request: Request) -> bool:
        asked.add(request.epoch)
        return fetch(request)

    monkeypatch.setattr(scheduler, "fetch_input", fetch_noted)
    bench.step()
    assert asked == set(rows[:2])


def test_playback_report_changes_urgency(shape: ChecksumFamily) -> None:
    bench = recorder(shape, max_batch_size=1, max_running_requests=3)
    ahead, behind = speak(bench), speak(bench)
    for row in (ahead, behind):
        run_until_heard(bench, row)
    bench.engine.requests.report_playback(ahead, bench.heard[ahead].num_samples)
    bench.engine.requests.report_playback(behind, 0)
    assert works_of_next_step(bench) == [ahead]


def test_a_report_before_the_first_chunk_costs_no_urgency(shape: ChecksumFamily) -> None:
    bench = recorder(shape, max_batch_size=1, max_running_requests=3)
    first, second = speak(bench), speak(bench)
    bench.engine.requests.report_playback(first, 0)
    assert works_of_next_step(bench) == [first]
    bench.engine.requests.report_playback(first, -600)
    assert works_of_next_step(bench) == [second], "its turn to be heard comes a second later"


# -- leads -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lead_ms", [0, 40, 500, 2000])
def test_a_row_never_passes_its_lead_and_one_chunk(shape: ChecksumFamily, lead_ms: int) -> None:
    bench = recorder(shape)
    row = speak(bench, lead_ms=lead_ms)
    scheduler = bench.engine.scheduler
    most_s = 0.0
    while bench.row(row):
        while bench.engine.has_work:
            bench.step()
            if request := bench.row(row):
                most_s = max(most_s, request.generated_lead_s(bench.now_s, scheduler.frame_s))
        bench.now_s = max(bench.now_s + 0.01, bench.engine.next_wake_s() or 0.0)
    assert most_s <= lead_ms / 1000 + shape.chunk_frames * scheduler.frame_s + 1e-6
    assert bench.heard[row].num_samples, "a short lead must not keep the first chunk from coming"
    check_says(shape, bench.heard[row], LONG)


def test_a_row_at_its_lead_asks_for_no_step_until_its_time_comes(shape: ChecksumFamily) -> None:
    bench = recorder(shape)
    row = speak(bench, lead_ms=100)
    bench.run(until=lambda: bench.heard[row].num_samples > 0)
    while bench.engine.has_work:
        bench.step()
    wake_s = bench.engine.next_wake_s()
    assert wake_s is not None
    assert wake_s > bench.now_s
    bench.now_s = wake_s + 1e-6
    assert bench.engine.has_work


LEAD_MS = 1_000


def test_rows_at_their_leads_step_together(shape: ChecksumFamily) -> None:
    """A tick as long as a frame."""
    frame_s = recorder(shape).engine.scheduler.frame_s
    assert rows_of_steps(shape, frame_s) > 1.5 * rows_of_steps(shape, 0.0)


def rows_of_steps(shape: ChecksumFamily, lead_step_interval_s: float) -> float:
    """In the mean, of four rows that began one after the other."""
    bench = recorder(shape, lead_step_interval_s=lead_step_interval_s)
    frame_s, rows = bench.engine.scheduler.frame_s, []
    for _ in range(4):
        rows.append(speak(bench, lead_ms=LEAD_MS))
        run_until_heard(bench, rows[-1])
        bench.now_s += 0.15 * frame_s
    bench.run(until=lambda: not bench.engine.has_work)
    began_s, bench.batches, bench.keep_batches = bench.now_s, [], True
    bench.run(until=lambda: bench.now_s > began_s + 10 * frame_s)
    for row in rows:
        assert bench.request(row).generated_lead_s(bench.now_s, frame_s) > LEAD_MS / 1000 - 2 * frame_s
    works = [len(batch.items) for batch in bench.batches if batch.items]
    return sum(works) / len(works)


def test_a_listener_with_a_short_lead_waits_for_no_tick(shape: ChecksumFamily) -> None:
    benches = [recorder(shape, lead_step_interval_s=tick_s) for tick_s in (0.0, 0.08)]
    for bench in benches:
        row = speak(bench, lead_ms=300)
        run_until_heard(bench, row, 4_000)
    assert benches[0].now_s == benches[1].now_s


def test_burst_does_not_wait(shape: ChecksumFamily) -> None:
    bench = recorder(shape)
    row = speak(bench, lead_ms=None)
    started_s = bench.now_s
    bench.run()
    assert bench.now_s == started_s
    check_says(shape, bench.heard[row], LONG)


def test_burst_rows_leave_room_some_time_after_paced_rows_that_ran_alone(shape: ChecksumFamily) -> None:
    bench = recorder(shape)
    speak(bench, lead_ms=500)
    bench.run()
    speak(bench, lead_ms=None)
    for wait_s, spares_paced in ((scheduler.PACED_MEMORY_S - 1, True), (2, False)):
        bench.now_s += wait_s
        bench.step()
        assert bench.engine.scheduler.spares_paced == spares_paced


# -- parking -----------------------------------------------------------------------------------------------------


def parked(shape: ChecksumFamily, **settings: Any) -> tuple[EngineHarness, int]:
    """A row that has spoken and has run out of text."""
    bench = recorder(shape, **settings)
    row = bench.submit(text=FIRST_WORDS, sampling=SamplingParams(seed=5))
    bench.run()
    assert bench.request(row).parked
    return bench, row


def test_starved_event_is_sent_once_a_park_with_lead(shape: ChecksumFamily) -> None:
    bench, row = parked(shape)
    [starved] = bench.heard[row].starved
    request = bench.request(row)
    assert starved.lead_ms == pytest.approx(1000 * request.num_frames * bench.engine.scheduler.frame_s)
    bench.push_text(row, "klmnopqrst")
    bench.run()
    assert len(bench.heard[row].starved) == 2


def test_too_short_text_starves_once() -> None:
    from tests.fakes.cosyvoice_checksum import CosyVoiceChecksumFamily

    bench, row = parked(CosyVoiceChecksumFamily())
    for letter in "klmn":
        bench.push_text(row, letter)
        bench.run()
    assert len(bench.heard[row].starved) == 1
    bench.push_text(row, "o")
    bench.run()
    assert len(bench.heard[row].starved) == 2


def test_a_parked_row_is_not_asked_stepped_or_padded(shape: ChecksumFamily, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, row = parked(shape)
    inputs = list(bench.request(row).row.inputs)
    asked: list[SequenceState] = []
    ask = bench.engine.model.next_input

    def next_input(asked_row: SequenceState) -> AwaitText | TalkerInputs:
        asked.append(asked_row)
        return ask(asked_row)

    monkeypatch.setattr(bench.engine.model, "next_input", next_input)
    other = speak(bench)
    bench.run()
    assert bench.heard[other].end
    assert bench.request(row).row not in asked
    assert bench.request(row).row.inputs == inputs


def test_a_parked_engine_has_no_work_and_wakes_for_nothing(shape: ChecksumFamily) -> None:
    bench, _ = parked(shape)
    bench.now_s += 10.0
    assert not bench.engine.has_work
    assert bench.engine.next_wake_s() is None


def test_a_row_that_sat_out_goes_on_as_if_it_had_not(shape: ChecksumFamily) -> None:
    bench, row = parked(shape)
    for _ in range(3):
        speak(bench)
    bench.run()
    bench.push_text(row, "klmno")
    bench.run()
    bench.end_input(row)
    bench.run()
    check_says(shape, bench.heard[row], FIRST_WORDS + "klmno")


def test_nothing_is_starved_before_its_first_audio(shape: ChecksumFamily) -> None:
    bench = recorder(shape)
    row = bench.submit()
    bench.run()
    assert bench.request(row).parked
    assert not bench.heard[row].events


# -- admission ---------------------------------------------------------------------------------------------------


def test_admission_is_first_come_first_served(shape: ChecksumFamily) -> None:
    bench = recorder(shape, max_running_requests=3)
    rows = [speak(bench, "abc" * (7 - n)) for n in range(6)]
    bench.run()
    assert bench.admitted == rows


def test_a_full_house_waits_for_a_slot(shape: ChecksumFamily) -> None:
    bench = recorder(shape, max_running_requests=3)
    rows = [speak(bench) for _ in range(3)]
    bench.step()
    assert [bench.request(row).slot is not None for row in rows] == [True, True, False]
    assert bench.engine.stats().num_waiting == 1
    bench.cancel(rows[0])
    bench.step()
    bench.step()
    assert bench.request(rows[2]).slot is not None


def test_waiter_for_a_step_needs_no_capacity(shape: ChecksumFamily) -> None:
    """A server that is asked again and again between two steps is not full."""
    bench = recorder(shape, max_running_requests=3)
    rows = [speak(bench)]
    bench.step()
    rows.append(speak(bench))
    assert bench.engine.stats().num_waiting == 0
    rows.append(speak(bench))
    bench.step()
    assert bench.engine.stats().num_waiting == 1
    bench.cancel(rows[2])
    assert bench.engine.stats().num_waiting == 0


def test_no_request_is_admitted_below_the_watermark(shape: ChecksumFamily) -> None:
    bench = recorder(shape, num_blocks=20, watermark_blocks=18)
    first, second = speak(bench), speak(bench)
    bench.step()
    bench.step()
    assert bench.engine.pool.num_free <= 18
    third = speak(bench)
    bench.step()
    assert bench.request(third).slot is None
    bench.cancel(first)
    bench.cancel(second)
    bench.run()
    check_says(shape, bench.heard[third], LONG)


def test_newcomers_of_a_step_share_one_look_at_the_rows(shape: ChecksumFamily, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = recorder(shape, max_running_requests=4)
    scheduler, looks = bench.engine.scheduler, list[Scheduler]()
    rows = [speak(bench) for _ in range(3)]
    monkeypatch.setattr(Scheduler, "is_short_of_blocks", property(lambda own: bool(looks.append(own))))
    scheduler.admit(bench.now_s)
    assert (len(looks), [request.epoch for request in scheduler.running]) == (1, rows)


def test_watermark_above_all_blocks_admits_one_alone(shape: ChecksumFamily) -> None:
    bench = recorder(shape, num_blocks=20, watermark_blocks=100)
    rows = [speak(bench) for _ in range(3)]
    bench.run()
    assert [bench.heard[row].reason for row in rows] != [None] * 3
    bench.check_idle()


def test_stage_without_slot_memory_queues_requests(shape: ChecksumFamily, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = recorder(shape)
    reserve = bench.engine.stage.reserve
    monkeypatch.setattr(bench.engine.stage, "reserve", lambda: None)
    row = speak(bench)
    bench.step()
    assert bench.engine.stats().num_waiting == 1
    monkeypatch.setattr(bench.engine.stage, "reserve", reserve)
    bench.run()
    check_says(shape, bench.heard[row], LONG)


# -- memory pressure ---------------------------------------------------------------------------------------------


def short_of_memory(shape: ChecksumFamily, **settings: Any) -> EngineHarness:
    """Room for about one row and a half."""
    return recorder(shape, **({"num_blocks": 18, "watermark_blocks": 0, "preempt_margin_s": 0.2} | settings))


def test_preempted_rows_finish_with_equal_codes(shape: ChecksumFamily) -> None:
    bench = short_of_memory(shape)
    rows = [speak(bench, lead_ms=lead) for lead in (None, 300, 0, None)]
    bench.run()
    bench.check_idle()
    assert bench.engine.stats().num_preemptions
    for row in rows:
        assert bench.heard[row].reason is FinishReason.STOP
        check_says(shape, bench.heard[row], LONG)


def test_parked_row_is_evicted_and_recomputed_for_text(shape: ChecksumFamily) -> None:
    bench, row = parked(shape, num_blocks=17, watermark_blocks=0)
    other = speak(bench)
    bench.run(until=lambda: not bench.request(row).block_table)
    assert bench.heard[other].end is None
    bench.run()
    assert bench.heard[other].end
    assert not bench.request(row).block_table, "computed again though no text has come"
    assert len(bench.heard[row].starved) == 1
    bench.push_text(row, "klmno")
    bench.end_input(row)
    bench.run()
    bench.check_idle()
    check_says(shape, bench.heard[row], FIRST_WORDS + "klmno")


def test_a_row_preempted_at_its_lead_samples_no_frame_twice(shape: ChecksumFamily) -> None:
    bench = recorder(shape)
    row = speak(bench, lead_ms=200)
    run_until_heard(bench, row)
    while bench.engine.has_work:
        bench.step()
    assert bench.request(row).row.num_due == 0
    bench.engine.scheduler.preempt(bench.request(row))
    bench.run()
    bench.check_idle()
    check_says(shape, bench.heard[row], LONG)


def test_the_row_furthest_ahead_gives_way(shape: ChecksumFamily) -> None:
    bench = recorder(shape, max_running_requests=4)
    near, far, urgent = (speak(bench) for _ in range(3))
    for row in (near, far, urgent):
        run_until_heard(bench, row)
    now_s = bench.now_s
    for row, dry_in_s in ((near, 2.0), (far, 9.0), (urgent, 0.1)):
        bench.request(row).clock.dry_at_s = now_s + dry_in_s
    bench.engine.pool.allocate(bench.engine.pool.num_free)
    scheduler = bench.engine.scheduler
    scheduler.preempt(bench.request(urgent))
    bench.engine.pool.release_quarantined()
    taken = bench.engine.pool.allocate(bench.engine.pool.num_free)
    assert taken
    scheduler.schedule(now_s)
    assert not bench.request(far).block_table
    assert bench.request(near).block_table


def test_row_is_not_preempted_for_a_slightly_urgent_one(shape: ChecksumFamily) -> None:
    bench = recorder(shape, max_running_requests=3, preempt_margin_s=1.0)
    first, second = speak(bench), speak(bench)
    for row in (first, second):
        run_until_heard(bench, row)
    scheduler, pool = bench.engine.scheduler, bench.engine.pool
    bench.request(first).clock.dry_at_s = bench.now_s + 0.5
    bench.request(second).clock.dry_at_s = bench.now_s + 1.0
    scheduler.preempt(bench.request(first))
    pool.release_quarantined()
    pool.allocate(pool.num_free)
    second_request = bench.request(second)
    second_request.block_table += [0] * 4  # it needs no further block for a while
    scheduler.schedule(bench.now_s)
    assert second_request.block_table


# -- prefill -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_prefill_positions", [2, 3, 7, 64])
def test_chunked_prefill_gives_equal_codes(shape: ChecksumFamily, max_prefill_positions: int) -> None:
    bench = recorder(shape, max_prefill_positions=max_prefill_positions)
    rows = [speak(bench, layout=TextLayout.FULL) for _ in range(4)]
    bench.run()
    for row in rows:
        check_says(shape, bench.heard[row], LONG)


def test_running_rows_step_beside_a_long_prefill(shape: ChecksumFamily) -> None:
    bench = recorder(shape, max_prefill_positions=4)
    running = bench.submit(text=LONG, sampling=SamplingParams(seed=1))
    run_until_heard(bench, running)
    bench.request(running).clock.dry_at_s = bench.now_s
    frames = bench.request(running).num_frames
    late = speak(bench, layout=TextLayout.FULL)
    for _ in range(4):
        bench.step()
    assert bench.request(late).row.num_computed > 4
    assert bench.request(running).num_frames > frames


def test_prefix_cache_changes_no_codes(shape: ChecksumFamily) -> None:
    said = []
    for max_cached_prefixes in (0, 1, 8):
        bench = recorder(shape, max_cached_prefixes=max_cached_prefixes)
        rows = [speak(bench, voice=voice) for voice in ("ada", "bo", "ada", "bo", "ada")]
        bench.run()
        said.append([bench.heard[row].pcm for row in rows])
        assert len(bench.engine.prefixes) == min(max_cached_prefixes, 2)
    for other in said[1:]:
        for pcm, same in zip(said[0], other, strict=True):
            np.testing.assert_allclose(pcm, same, rtol=0, atol=shape.pcm_tolerance)


# -- the end -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_steps", [0, 1, 2, 5, 40])
def test_a_cancel_frees_everything_within_one_step(shape: ChecksumFamily, num_steps: int) -> None:
    bench = recorder(shape)
    row = bench.submit(text=LONG, sampling=SamplingParams(seed=1))
    for _ in range(num_steps):
        bench.step()
    bench.cancel(row)
    assert bench.heard[row].reason is FinishReason.CANCELLED
    assert bench.engine.has_work
    bench.step()
    bench.check_idle()


def test_freed_memory_is_reused_after_the_step_in_flight(shape: ChecksumFamily) -> None:
    bench = recorder(shape)
    row = speak(bench)
    run_until_heard(bench, row)
    free, slots = bench.engine.pool.num_free, bench.engine.stage.slots.num_free
    bench.cancel(row)
    assert (bench.engine.pool.num_free, bench.engine.stage.slots.num_free) == (free, slots)
    assert bench.engine.pool.num_quarantined
    bench.step()
    assert bench.engine.pool.num_free == bench.engine.pool.num_blocks
