"""What leaves when: clock, pacer, packet ring and stall detector."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.audio.pacer import Pacer, PacerSettings, UnderrunCause
from sessions.clock import TICK_S, WakeEvent, is_due, next_tick, now_s
from sessions.config import SessionLimits
from sessions.errors import SlowReader, TextTimeout
from sessions.events import FlushCompleted, HeardText, ResponseAudio, ResponseFinished, ResponseStatus
from sessions.ring import RESUME_WINDOW_BYTES, PacketRing, group_packets, max_audio_message_ms
from sessions.stall_detector import StallDetector, StallSource

pytestmark = pytest.mark.virtual_time


async def test_it_wakes_at_its_moment():
    await WakeEvent().wait(until_s=2.0)
    assert now_s() == pytest.approx(2.0, abs=TICK_S)


async def test_a_ring_wakes_earlier_and_leaves_no_timer():
    alarm = WakeEvent()
    asyncio.get_running_loop().call_later(1.0, alarm.set)
    await alarm.wait(until_s=5.0)
    assert now_s() == pytest.approx(1.0)
    await alarm.wait(until_s=9.0)
    assert now_s() == pytest.approx(9.0, abs=TICK_S)


async def test_a_ring_is_kept_for_the_next_wait_and_only_for_that():
    alarm = WakeEvent()
    alarm.set()
    alarm.set()
    await alarm.wait()
    assert now_s() == 0.0
    await alarm.wait(until_s=1.0)
    assert now_s() == pytest.approx(1.0, abs=TICK_S)


async def test_a_cancelled_wait_leaves_nothing_behind():
    alarm = WakeEvent()
    waiting = asyncio.create_task(alarm.wait(until_s=1.0))
    await asyncio.sleep(0.5)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await alarm.wait(until_s=3.0)
    assert now_s() == pytest.approx(3.0, abs=TICK_S)


@pytest.mark.parametrize(("moment_s", "tick_s"), [(0.0, 0.0), (0.001, TICK_S), (TICK_S, TICK_S)])
def test_ticks_never_come_early(moment_s, tick_s):
    assert next_tick(moment_s) == pytest.approx(tick_s)


@given(st.floats(0, 1e6))
def test_a_moment_is_due_at_its_tick(moment_s):
    assert is_due(moment_s, now_s=next_tick(moment_s) - 1e-9)


RATE = 24_000
FRAME = 480


def ms(duration_ms: float) -> int:
    return round(duration_ms * RATE / 1000)


def pacer(**settings: int | None) -> Pacer:
    return Pacer(RATE, PacerSettings(**settings))


def run(pacer: Pacer, num_messages: int, message_samples: int, until_s: float = 60.0) -> list[float]:
    """Hand over each message as soon as it is due; when each one left."""
    now_s, left_s = 0.0, []
    for _ in range(num_messages):
        now_s = pacer.due_s(message_samples, now_s)
        assert now_s < until_s
        pacer.on_sent(message_samples, now_s)
        left_s.append(now_s)
    return left_s


@given(st.integers(40, 3_000), st.sampled_from([20, 60, 80]))
def test_lead_is_never_passed_and_playback_never_runs_dry(lead_ms: int, message_ms: int) -> None:
    it = pacer(lead_ms=lead_ms)
    now_s = 0.0
    for _ in range(100):
        now_s = it.due_s(ms(message_ms), now_s)
        assert it.on_sent(ms(message_ms), now_s) is None
        assert it.lead_samples(now_s) <= max(ms(lead_ms), ms(message_ms)) + 1


def test_lead_leaves_at_once_and_the_rest_in_real_time() -> None:
    left_s = run(pacer(lead_ms=100, start_delay_ms=0), 10, ms(20))
    assert left_s == pytest.approx([0, 0, 0, 0, 0, 0.02, 0.04, 0.06, 0.08, 0.10])


def test_burst_leaves_at_once() -> None:
    assert run(pacer(lead_ms=None), 1_000, ms(80)) == [0.0] * 1_000


def test_message_longer_than_the_lead_waits_for_playback() -> None:
    assert run(pacer(lead_ms=50, start_delay_ms=0), 3, ms(80)) == pytest.approx([0, 0.08, 0.16])


def test_the_start_delay_holds_the_clock_back() -> None:
    it = pacer(start_delay_ms=60)
    it.on_sent(ms(500), 1.0)
    assert it.played_samples(1.06) == 0
    assert it.played_samples(1.16) == pytest.approx(ms(100), abs=1)
    assert it.underrun_deadline_s() == pytest.approx(1.56)


def test_the_clock_stands_still_while_there_is_nothing_to_play() -> None:
    it = pacer(start_delay_ms=0)
    it.on_sent(ms(100), 0.0)
    assert it.played_samples(5.0) == ms(100)
    it.on_sent(ms(100), 5.0)
    assert it.played_samples(5.0) == ms(100)
    assert it.played_samples(5.05) == pytest.approx(ms(150), abs=1)


@pytest.mark.parametrize("cause", UnderrunCause)
def test_underrun_is_reported_at_its_end_with_cause(cause: UnderrunCause) -> None:
    it = pacer(start_delay_ms=0)
    it.on_sent(ms(100), 0.0)
    assert it.on_sent(ms(100), 0.4, cause) is cause
    assert it.on_sent(ms(100), 0.45, cause) is None


def test_gap_below_the_limit_is_not_reported() -> None:
    it = pacer(start_delay_ms=0, min_underrun_ms=10)
    it.on_sent(ms(100), 0.0)
    assert it.on_sent(ms(100), 0.109) is None
    assert it.on_sent(ms(100), 0.220) is not None


def test_an_end_without_more_audio_is_no_underrun() -> None:
    it = pacer()
    it.on_sent(ms(100), 0.0)
    assert it.lead_samples(9.0) == 0
    assert it.played_samples(9.0) == ms(100)


def test_reports_move_the_clock_and_it_runs_on_from_there() -> None:
    it = pacer(start_delay_ms=0)
    it.on_sent(ms(2_000), 0.0)
    assert it.on_playback_report(ms(300), 0.5) == ms(300)
    assert it.played_samples(0.7) == pytest.approx(ms(500), abs=1)
    assert it.due_s(ms(100), 0.5) == pytest.approx(0.5)  # 1,700 are left
    assert it.due_s(ms(400), 0.5) == pytest.approx(0.6)


def test_a_listener_with_a_deep_buffer_gets_no_false_underrun() -> None:
    it = pacer(start_delay_ms=0)
    it.on_sent(ms(300), 0.0)
    it.on_playback_report(ms(50), 0.25)
    assert it.on_sent(ms(100), 0.45) is None


@given(st.lists(st.tuples(st.floats(0, 0.5), st.integers(-(10**12), 10**12), st.booleans()), max_size=40))
def test_absurd_reports_are_held_to_what_can_be(steps: list[tuple[float, int, bool]]) -> None:
    it = pacer(report_tolerance_ms=200)
    now_s = believed_before = 0.0
    it.on_sent(FRAME, now_s)
    for wait_s, said, hand_over in steps:
        now_s += wait_s
        if hand_over:
            it.on_sent(FRAME, now_s)
        believed = it.on_playback_report(said, now_s)
        assert believed_before <= believed <= it.handed_over_samples
        assert believed <= (now_s + 0.2) * RATE + 1
        assert it.played_samples(now_s) == believed
        believed_before = believed


def test_a_report_ahead_of_time_is_cut_to_the_tolerance() -> None:
    it = pacer(lead_ms=None, report_tolerance_ms=500)
    it.on_sent(ms(5_000), 0.0)
    assert it.on_playback_report(ms(550), 0.1) == ms(550)
    assert it.on_playback_report(ms(3_000), 0.1) == pytest.approx(ms(600), abs=1)


def test_a_report_before_any_audio_is_nothing() -> None:
    it = pacer()
    assert it.on_playback_report(10**9, 3.0) == 0
    assert it.due_s(FRAME, 3.0) == 3.0
    assert it.played_samples(4.0) == it.lead_samples(4.0) == 0


@given(st.floats(0.9, 1.1))
def test_a_skewed_clock_shifts_the_pace_by_its_skew(skew: float) -> None:
    """A device that plays a little too fast or too slow, and says so, is followed: its lead stays full."""
    it = pacer(lead_ms=400, start_delay_ms=0, report_tolerance_ms=2_000)
    now_s, left = 0.0, 0
    while now_s < 10.0:
        while it.due_s(FRAME, now_s) <= now_s:
            it.on_sent(FRAME, now_s)
            left += FRAME
        now_s += 0.01
        it.on_playback_report(int(now_s * skew * RATE), now_s)
    assert left / RATE == pytest.approx(10 * skew + 0.4, abs=0.05)


def test_stopped_listener_gets_no_more_than_the_lead() -> None:
    it = pacer(lead_ms=500)
    now_s = 0.0
    while now_s < 30.0:
        while it.due_s(FRAME, now_s) <= now_s:
            it.on_sent(FRAME, now_s)
        now_s += 0.1
        it.on_playback_report(0, now_s)
    assert it.handed_over_samples <= ms(500 + 100)


@pytest.mark.parametrize("field", ["lead_ms", "start_delay_ms", "report_tolerance_ms", "min_underrun_ms"])
def test_negative_settings_are_refused(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} must be at least 0, got -1"):
        pacer(**{field: -1})


RING_RATE = 8_000


@dataclass(frozen=True)
class Sound:
    num_samples: int

    @property
    def data(self) -> bytes:
        return bytes(self.num_samples)


def make_ring(lead_ms: int | None, underruns: list[UnderrunCause] | None = None) -> PacketRing:
    note = [].append if underruns is None else underruns.append
    return PacketRing("r", Pacer(RING_RATE, PacerSettings(lead_ms=lead_ms)), note)


@given(st.lists(st.integers(1, 500), max_size=20), st.integers(0, 1_000))
def test_groups_keep_the_order_and_the_limit(sizes: list[int], limit: int):
    groups = list(group_packets([Sound(size) for size in sizes], limit))
    assert [packet.num_samples for group in groups for packet in group] == sizes
    for group in groups:
        assert len(group) == 1 or sum(packet.num_samples for packet in group) <= limit


@pytest.mark.parametrize(
    ("lead_ms", "longest_ms", "message_ms"),
    [
        *((None, 80, 80), (2_000, 80, 80), (100, 80, 50), (40, 80, 20), (0, 80, 0)),
        *((None, 240, 240), (10_000, 240, 240), (2_000, 240, 240), (1_000, 240, 125), (400, 240, 80), (100, 240, 50)),
    ],
)
def test_messages_are_short_where_the_lead_is(lead_ms: int | None, longest_ms: int, message_ms: int):
    assert max_audio_message_ms(lead_ms, longest_ms) == message_ms


@given(st.lists(st.one_of(st.integers(1, 900), st.none()), max_size=30), st.sampled_from([None, 0, 100, 1_000]))
def test_everything_leaves_in_order_when_it_is_due(items: list[int | None], lead_ms: int | None):
    ring, now, popped = make_ring(lead_ms), 0.0, []
    for number, size in enumerate(items):
        if size is None:
            ring.put_flush(number)
        else:
            ring.put([Sound(size)], now, UnderrunCause.ENGINE)
    while (due_s := ring.due_s(now)) is not None:
        assert due_s >= now
        now = due_s
        popped.append(ring.pop_due(now))
        assert lead_ms is None or ring.lead_ms(now) <= max(lead_ms, 113)
    assert ring.is_empty
    assert ring.waiting_samples == 0
    assert [event.num_samples if isinstance(event, ResponseAudio) else None for event in popped] == items
    assert [event.flush for event in popped if isinstance(event, FlushCompleted)] == [
        number for number, size in enumerate(items) if size is None
    ]


def test_terminal_event_is_the_last_entry():
    ring, summary = make_ring(None), HeardText("", "", 0.0)
    terminal = ResponseFinished("r", ResponseStatus.COMPLETED, 800, 100.0, summary)
    ring.put([Sound(800)], 0.0, UnderrunCause.ENGINE)
    ring.close(terminal)
    assert isinstance(ring.pop_due(0.0), ResponseAudio)
    assert [ring.pop_due(0.0), ring.pop_due(0.0)] == [terminal, None]
    with pytest.raises(AssertionError, match="terminal"):
        ring.put_flush(0)


def test_underrun_counts_only_if_audio_was_not_ready():
    underruns: list[UnderrunCause] = []
    ring = make_ring(2_000, underruns)
    ring.put([Sound(800), Sound(800)], 0.0, UnderrunCause.ENGINE)
    ring.pop_due(0.0)
    ring.pop_due(5.0)
    assert not underruns
    ring.put([Sound(800)], 9.0, UnderrunCause.TEXT)
    ring.pop_due(9.0)
    assert underruns == [UnderrunCause.TEXT]


def test_progress_or_another_source_restarts_a_stall_limit():
    detector = StallDetector(SessionLimits(reader_timeout_s=10, text_timeout_s=60))
    assert detector.check(StallSource.READER, 1, 0.0) is None
    assert detector.check(StallSource.READER, 2, 9.0) is None
    assert detector.check(StallSource.READER, 2, 19.0) is None
    assert isinstance(detector.check(StallSource.READER, 2, 19.1), SlowReader)
    assert detector.check(StallSource.WRITER, 2, 19.1) is None
    assert detector.check(StallSource.WRITER, 2, 79.0) is None
    error = detector.check(StallSource.WRITER, 2, 79.2)
    assert isinstance(error, TextTimeout)
    assert str(error) == "text_timeout_s is 60"


@given(
    st.lists(st.one_of(st.integers(1, 900), st.none()), min_size=1, max_size=30),
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=6),
    st.sampled_from([None, 100, 1_000]),
    st.sampled_from([0, 640]),
)
def test_rewind_repeats_what_a_reader_lacks(
    items: list[int | None], cuts: list[tuple[int, int]], lead_ms: int | None, preroll_samples: int
) -> None:
    """Each cut loses the last messages. Whatever is cut, the reader gets every sample once, and the end."""
    ring = PacketRing("r", Pacer(RING_RATE, PacerSettings(lead_ms=lead_ms)), lambda _: None, retains=True)
    for number, size in enumerate(items):
        ring.put_flush(number) if size is None else ring.put([Sound(size)], 0.0, UnderrunCause.ENGINE)
    ring.close(ResponseFinished("r", ResponseStatus.COMPLETED, 800, 100.0, HeardText("", "", 0.0)))
    now, popped, received, sent = 0.0, [], [], {}
    for num_popped, num_lost in [*cuts, (1_000, 0)]:
        while len(popped) < num_popped and (due_s := ring.due_s(now)) is not None:
            now = due_s
            popped.append(event := ring.pop_due(now))
            if isinstance(event, ResponseAudio):
                assert sent.setdefault(event.start_sample, event) == event, "a repeated message differs"
        received += popped[: max(len(popped) - num_lost, 0)]
        popped = []
        num_samples = max((e.start_sample + e.num_samples for e in received if isinstance(e, ResponseAudio)), default=0)
        if num_popped < 1_000:
            ring.freeze(now)
            now += 1.0
            ring.rewind(num_samples, num_samples, preroll_samples, now)
    audio = {event.start_sample: event for event in received if isinstance(event, ResponseAudio)}
    assert [audio[start].num_samples for start in sorted(audio)] == [size for size in items if size is not None]
    assert {e.flush for e in received if isinstance(e, FlushCompleted)} == {n for n, s in enumerate(items) if s is None}
    assert isinstance(received[-1], ResponseFinished)
    assert ring.waiting_samples == 0


def test_rewind_beyond_what_is_retained_is_refused() -> None:
    ring = PacketRing("r", Pacer(RING_RATE, PacerSettings(lead_ms=None)), lambda _: None, retains=True)
    for _ in range(RESUME_WINDOW_BYTES // 8_000 + 2):
        ring.put([Sound(8_000)], 0.0, UnderrunCause.ENGINE)
        ring.pop_due(0.0)
    with pytest.raises(ValueError, match=r"is 0; audio from \d+ on is retained"):
        ring.rewind(0, 0, 0, 1.0)
    with pytest.raises(ValueError, match="were sent"):
        ring.rewind(10**9, 0, 0, 1.0)
    ring.rewind(ring.num_sent_samples - 8_000, 0, 0, 1.0)
    assert isinstance(ring.pop_due(1.0), ResponseAudio)
    ring.report(ring.num_sent_samples, 100.0)
    with pytest.raises(ValueError, match="is retained"):
        ring.rewind(ring.num_sent_samples - 8_000, 0, 0, 101.0)
