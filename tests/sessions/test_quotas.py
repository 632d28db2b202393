"""Quotas of a key: windows on two clocks, counts of several processes, and what a refusal says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sessions.admission import LocalUsageCounters
from sessions.errors import QuotaExceeded
from sessions.events import ResponseAudio, ResponseStatus
from sessions.quotas import (
    DAY_S,
    MINUTE_S,
    KeyMeter,
    KeyQuotas,
    QuotaClock,
    QuotaCounters,
    WindowedCounts,
    quota_counter,
)
from sessions.registry import SessionRegistry
from tests.fakes.engine import SAMPLE_RATE, FakeSpeechEngine
from tests.sessions.conftest import LIMITS, PACED, CountingMetrics, RecordingEngine, ResponseRecord, read

KEY = "ann"
NOON_S = 20_000 * DAY_S + DAY_S // 2


class SetClock:
    def __init__(self) -> None:
        self.monotonic_s, self.utc_s = 600.0, float(NOON_S)

    @property
    def clock(self) -> QuotaClock:
        return QuotaClock(lambda: self.monotonic_s, lambda: self.utc_s)


def names_of(quotas: KeyQuotas) -> list[tuple[str, int]]:
    return [(quota_counter(rule, KEY), rule.window_s) for rule, _ in quotas.given()]


def create_meter(clock: SetClock, **limits: int) -> KeyMeter:
    quotas = KeyQuotas(**limits)
    counts = WindowedCounts.in_memory(names_of(quotas), clock.clock)
    return KeyMeter(KEY, quotas, QuotaCounters(LocalUsageCounters(), counts), 1_000, clock.clock)


def test_minute_quota_refuses_until_its_minute_ends():
    clock = SetClock()
    meter = create_meter(clock, max_chars_per_minute=10)
    meter.charge_text(7)
    clock.monotonic_s += 20
    with pytest.raises(QuotaExceeded, match=r"is 10, 7 characters are used and the text has 4; .* in 40 s") as refused:
        meter.charge_text(4)
    assert refused.value.info.retryable
    assert refused.value.retry_after_ms == pytest.approx(40_000, abs=1)
    meter.charge_text(3)  # a refusal counts nothing
    clock.monotonic_s += 40
    meter.charge_text(10)


def test_text_above_the_quota_is_no_matter_of_waiting():
    with pytest.raises(QuotaExceeded, match="max_chars_per_day is 10, the text has 11") as refused:
        create_meter(SetClock(), max_chars_per_day=10).charge_text(11)
    assert not refused.value.info.retryable


def test_audio_quota_refuses_after_it_was_passed():
    clock = SetClock()
    meter = create_meter(clock, max_audio_s_per_day=2)
    meter.charge_audio(1_999)
    meter.check()
    meter.charge_audio(500)
    with pytest.raises(QuotaExceeded, match="max_audio_s_per_day is 2, 2 seconds of audio are used"):
        meter.charge_text(1)
    clock.utc_s += DAY_S // 2
    meter.charge_text(1)


@pytest.mark.parametrize("jump_s", [-400 * DAY_S, -DAY_S, 400 * DAY_S, -float(NOON_S)])
def test_wall_clock_jump_leaves_the_minute_alone(jump_s: float):
    clock = SetClock()
    meter = create_meter(clock, max_chars_per_minute=10)
    meter.charge_text(10)
    clock.utc_s += jump_s
    with pytest.raises(QuotaExceeded):
        meter.charge_text(1)


def test_wall_clock_set_back_keeps_the_count_for_one_day():
    clock = SetClock()
    meter = create_meter(clock, max_chars_per_day=10)
    clock.utc_s += 400 * DAY_S
    meter.charge_text(10)
    clock.utc_s -= 400 * DAY_S
    with pytest.raises(QuotaExceeded) as refused:
        meter.charge_text(1)
    assert refused.value.retry_after_ms is not None
    assert refused.value.retry_after_ms <= 1000 * DAY_S
    clock.utc_s += DAY_S
    meter.charge_text(10)


def test_counts_of_processes_are_added_and_outlive_one(tmp_path: Path):
    file, names = tmp_path / "quotas", [("chars", MINUTE_S * 10**9), ("audio", DAY_S)]
    WindowedCounts.make_file(file, names, 2)
    one, other = (WindowedCounts.in_file(file, names, column) for column in range(2))
    one.add("chars", 3)
    other.add("chars", 2**40)
    one.add("audio", 1)
    assert one.total("chars") == other.total("chars") == 2**40 + 3
    again = WindowedCounts.in_file(file, names, 0)
    again.add("chars", 1)
    assert other.total("chars") == 2**40 + 4


class HalfLease(LocalUsageCounters):
    """Has half of each limit's places."""

    def places(self, name: str, limit: int, needed: int = 1) -> int:
        return limit // 2


def test_places_of_other_gateways_can_be_tried_soon():
    clock, quotas = SetClock(), KeyQuotas(max_chars_per_minute=10)
    counts = WindowedCounts.in_memory(names_of(quotas), clock.clock)
    meter = KeyMeter(KEY, quotas, QuotaCounters(HalfLease(), counts), 1_000, clock.clock)
    with pytest.raises(QuotaExceeded) as refused:
        meter.charge_text(6)
    assert refused.value.retry_after_ms == 1_000
    meter.charge_text(5)
    with pytest.raises(QuotaExceeded) as refused:
        meter.charge_text(6)
    assert refused.value.retry_after_ms == pytest.approx(60_000, abs=1)


def quota_registry(engine: FakeSpeechEngine, quotas: KeyQuotas) -> SessionRegistry:
    counters = QuotaCounters(LocalUsageCounters(), WindowedCounts.in_memory(names_of(quotas)))
    return SessionRegistry(engine, LIMITS, CountingMetrics(), tally=counters)


@pytest.mark.virtual_time
async def test_text_beyond_the_quota_fails_that_response_alone(engine: RecordingEngine):
    quotas = KeyQuotas(max_chars_per_day=30)
    registry = quota_registry(engine, quotas)
    session = registry.create(KEY, PACED, quotas=quotas)
    first = session.create_response(text="One two three. ")
    first.push_text("Four five six.")
    second = session.create_response(text="Seven.", text_closed=True)
    first.end_input()
    assert (await read(first)).done.status is ResponseStatus.COMPLETED
    done = (await read(second)).done
    assert (done.status, done.error and done.error.code) == (ResponseStatus.FAILED, "quota_exceeded")
    assert done.error is not None
    assert done.error.retryable
    await registry.aclose()


@pytest.mark.virtual_time
async def test_audio_sent_is_charged_and_ends_later_responses(engine: RecordingEngine):
    quotas = KeyQuotas(max_audio_s_per_day=1)
    registry = quota_registry(engine, quotas)
    session = registry.create(KEY, PACED, quotas=quotas)
    done = (await read(session.create_response(text="One two three four five six seven.", text_closed=True))).done
    assert done.status is ResponseStatus.COMPLETED
    assert done.audio_ms > 1_000
    with pytest.raises(QuotaExceeded, match="max_audio_s_per_day is 1"):
        session.create_response(text="Eight.", text_closed=True)
    await registry.aclose()


@pytest.mark.virtual_time
async def test_audio_handed_over_before_a_cancel_counts(engine: RecordingEngine):
    quotas = KeyQuotas(max_audio_s_per_day=1)
    counts = WindowedCounts.in_memory(names_of(quotas))
    registry = SessionRegistry(engine, LIMITS, tally=QuotaCounters(LocalUsageCounters(), counts))
    session = registry.create(KEY, PACED, quotas=quotas)
    response = session.create_response(text="One two three four five six seven.", text_closed=True)
    audio, record = await anext(response), ResponseRecord()
    assert isinstance(audio, ResponseAudio)
    record.note(audio)
    response.cancel()
    assert [counts.total(name) for name, _ in names_of(quotas)] == [1000 * audio.num_samples // SAMPLE_RATE]
    assert (await read(response, record)).done.first_audio_ms is not None
    await registry.aclose()


@pytest.mark.virtual_time
async def test_bulk_responses_have_no_deadline_and_are_paced(registry: SessionRegistry, engine: RecordingEngine):
    text = "One two three four five six seven eight nine ten."
    records = []
    for is_bulk in (False, True):
        session = registry.create(settings=replace(PACED, lead_ms=100), is_bulk=is_bulk)
        records.append(await read(session.create_response(text=text, text_closed=True)))
    assert [request.lead_ms for request in engine.requests] == [500, None]
    live, bulk = records
    assert bulk.data == live.data
    assert bulk.times_s[-1] - bulk.times_s[0] > bulk.done.audio_ms / 1000 - 0.5
