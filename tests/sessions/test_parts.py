"""Test the pure parts of a response: packet ring, stall detector and error bodies."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.audio.pacer import Pacer, PacerSettings, PlayoutUnderrun, UnderrunCause
from sessions.config import SessionLimits
from sessions.errors import SlowReader, TextTimeout
from sessions.events import FlushCompleted, HeardText, ResponseAudio, ResponseFinished, ResponseStatus
from sessions.ring import PacketRing, group_packets, max_audio_message_ms
from sessions.stall_detector import StallDetector, StallSource

RATE = 8_000


@dataclass(frozen=True)
class Sound:
    num_samples: int

    @property
    def data(self) -> bytes:
        return bytes(self.num_samples)


def make_ring(lead_ms: int | None, underruns: list[PlayoutUnderrun] | None = None) -> PacketRing:
    note = [].append if underruns is None else underruns.append
    return PacketRing("r", Pacer(RATE, PacerSettings(lead_ms=lead_ms)), note)


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
    underruns: list[PlayoutUnderrun] = []
    ring = make_ring(2_000, underruns)
    ring.put([Sound(800), Sound(800)], 0.0, UnderrunCause.ENGINE)
    ring.pop_due(0.0)
    ring.pop_due(5.0)
    assert not underruns
    ring.put([Sound(800)], 9.0, UnderrunCause.TEXT)
    ring.pop_due(9.0)
    assert [underrun.cause for underrun in underruns] == [UnderrunCause.TEXT]


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
