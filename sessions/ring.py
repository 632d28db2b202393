"""The packets, word times and flushes of a response in order, each with the time at which it may leave.

The terminal event is the last entry, so that a reader gets exactly one. Pure: time is passed in.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sessions.alignment.word_times import WordTime
from sessions.audio.pacer import Pacer, PlayoutUnderrun, UnderrunCause
from sessions.clock import is_due
from sessions.events import FlushCompleted, ResponseAudio, ResponseEvent, ResponseFinished, ResponseWordTimes
from sessions.packetizer import AudioPacket

# Packets made together leave together, the four of a codec frame in any case where the lead is no shorter.
FRAME_MESSAGE_MS = 80
# Messages that a long lead is sent in.
MESSAGES_IN_LEAD = 8


@dataclass(frozen=True, slots=True)
class PacketGroup:
    """Packets that leave together."""

    packets: tuple[AudioPacket, ...]
    num_samples: int
    ready_s: float
    # The cause of an underrun, if the listener had to wait for this group.
    late_cause: UnderrunCause


@dataclass(frozen=True, slots=True)
class FlushEntry:
    flush: int


class PacketRing:
    """First in, first out; counts messages and samples. Positions are in samples at the format's rate."""

    def __init__(
        self,
        response_id: str,
        pacer: Pacer,
        on_underrun: Callable[[PlayoutUnderrun], None],
        message_ms: int = FRAME_MESSAGE_MS,
    ) -> None:
        """A message holds at most ``message_ms``, and less with a short lead."""
        self._response_id = response_id
        self._pacer = pacer
        self._on_underrun = on_underrun
        self._max_message_samples = pacer.sample_rate * max_audio_message_ms(pacer.settings.lead_ms, message_ms) // 1000
        self._entries: deque[PacketGroup | ResponseWordTimes | FlushEntry | ResponseFinished] = deque()
        self._popped_s = -math.inf
        # Samples of messages that have not been popped yet.
        self.waiting_samples = 0
        # Audio messages.
        self.num_messages_sent = 0
        self.is_closed = False

    @property
    def is_empty(self) -> bool:
        return not self._entries

    @property
    def num_sent_samples(self) -> int:
        return self._pacer.handed_over_samples

    def played_samples(self, now_s: float) -> int:
        """Return the listener's position, as ``ResponseAudio.start_sample`` counts."""
        return self._pacer.played_samples(now_s)

    def left_ms(self, now_s: float) -> float:
        """Audio that the listener has still to play, sent or waiting here."""
        return 1000 * self.waiting_samples / self._pacer.sample_rate + self.lead_ms(now_s)

    def lead_ms(self, now_s: float) -> float:
        """Audio that was sent and is not yet played."""
        return 1000 * self._pacer.lead_samples(now_s) / self._pacer.sample_rate

    def report(self, played_samples: int, now_s: float) -> None:
        """Set the listener's position to what the client reports."""
        self._pacer.on_playback_report(played_samples, now_s)

    def put(self, packets: Iterable[AudioPacket], now_s: float, late_cause: UnderrunCause) -> None:
        for group in group_packets(packets, self._max_message_samples):
            num_samples = sum(packet.num_samples for packet in group)
            self._append(PacketGroup(tuple(group), num_samples, now_s, late_cause))
            self.waiting_samples += num_samples

    def put_words(self, words: Sequence[WordTime]) -> None:
        self._append(ResponseWordTimes(self._response_id, tuple(words)))

    def put_flush(self, flush: int) -> None:
        self._append(FlushEntry(flush))

    def close(self, terminal: ResponseFinished) -> None:
        """Append the last entry. Nothing can be put after it."""
        self._append(terminal)
        self.is_closed = True

    def clear(self) -> None:
        """Drop what was not popped."""
        self._entries.clear()
        self.waiting_samples = 0

    def due_s(self, now_s: float) -> float | None:
        """Return when ``pop_due`` returns the next event; ``None`` while nothing waits."""
        if not self._entries:
            return None
        head = self._entries[0]
        return self._pacer.due_s(head.num_samples, now_s) if isinstance(head, PacketGroup) else now_s

    def unread_s(self, now_s: float) -> float:
        """Return how long audio has waited without any being popped."""
        head = next((entry for entry in self._entries if isinstance(entry, PacketGroup)), None)
        return 0.0 if head is None else now_s - max(head.ready_s, self._popped_s)

    def pop_due(self, now_s: float) -> ResponseEvent | None:
        """Return the first entry if it is due."""
        due_s = self.due_s(now_s)
        if due_s is None or not is_due(due_s, now_s):
            return None
        self._popped_s = now_s
        match head := self._entries.popleft():
            case PacketGroup():
                return self._on_sent(head, now_s)
            case FlushEntry():
                return FlushCompleted(self._response_id, head.flush, self.num_sent_samples)
            case _:
                return head

    def _append(self, entry: PacketGroup | ResponseWordTimes | FlushEntry | ResponseFinished) -> None:
        assert not self.is_closed, "an entry after the terminal event"
        self._entries.append(entry)

    def _on_sent(self, group: PacketGroup, now_s: float) -> ResponseAudio:
        start_sample = self._pacer.handed_over_samples
        was_in_time = group.ready_s <= self._pacer.underrun_deadline_s()
        underrun = self._pacer.on_sent(group.num_samples, now_s, group.late_cause)
        if underrun and not was_in_time:
            self._on_underrun(underrun)
        self.waiting_samples -= group.num_samples
        sequence, self.num_messages_sent = self.num_messages_sent, self.num_messages_sent + 1
        packets = tuple(packet.data for packet in group.packets)
        return ResponseAudio(self._response_id, sequence, start_sample, group.num_samples, packets)


def max_audio_message_ms(lead_ms: int | None, message_ms: int) -> int:
    """Bound a message to half of a short lead, so that it never waits until the whole lead is played."""
    if lead_ms is None:
        return message_ms
    return min(message_ms, max(lead_ms // MESSAGES_IN_LEAD, min(FRAME_MESSAGE_MS, lead_ms // 2)))


def group_packets(packets: Iterable[AudioPacket], max_samples: int) -> Iterable[Sequence[AudioPacket]]:
    """Group packets in order, at least one per group and at most ``max_samples`` samples otherwise."""
    group: list[AudioPacket] = []
    num_samples = 0
    for packet in packets:
        if group and num_samples + packet.num_samples > max_samples:
            yield group
            group, num_samples = [], 0
        group.append(packet)
        num_samples += packet.num_samples
    if group:
        yield group
