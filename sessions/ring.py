"""The packets, word times and flushes of a response in order, each with the time at which it may leave.

The terminal event is the last entry, so that a reader gets exactly one. A ring of a resumable session retains what it
has sent, and can go back to what a client received. Pure: time is passed in.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import Struct

from sessions.alignment.word_times import WordTime
from sessions.audio.pacer import Pacer, UnderrunCause
from sessions.clock import is_due
from sessions.config import PACKET_MS
from sessions.events import (
    CheckpointAdded,
    FlushCompleted,
    MarkReached,
    MarkupWarned,
    ResponseAudio,
    ResponseEvent,
    ResponseFinished,
    ResponseWordTimes,
)

if TYPE_CHECKING:
    from sessions.packetizer import AudioPacket

# Packets made together leave together, the four of a codec frame in any case where the lead is no shorter.
FRAME_MESSAGE_MS = 80
# Messages that a long lead is sent in.
MESSAGES_IN_LEAD = 8
# Sent audio that a resumable response retains at most.
RESUME_WINDOW_S = 30
RESUME_WINDOW_BYTES = 294_912


class PacketGroup(Struct, frozen=True):
    """Packets that leave together."""

    packets: tuple[AudioPacket, ...]
    num_samples: int
    ready_s: float
    # The cause of an underrun, if the listener had to wait for this group.
    late_cause: UnderrunCause


@dataclass(frozen=True, slots=True)
class FlushEntry:
    flush: int


Entry = PacketGroup | ResponseWordTimes | CheckpointAdded | FlushEntry | MarkReached | MarkupWarned | ResponseFinished


class SentEntry(Struct, frozen=True):
    """A sent entry with the positions before and after it, in samples and in audio messages."""

    entry: Entry
    start_sample: int
    end_sample: int
    sequence: int
    num_bytes: int

    def is_received(self, num_samples: int) -> bool:
        """Return whether a client that has ``num_samples`` of audio certainly has this."""
        return self.end_sample < num_samples or self.start_sample < self.end_sample == num_samples


class PacketRing:
    """First in, first out; counts messages and samples. Positions are in samples at the format's rate."""

    def __init__(
        self,
        response_id: str,
        pacer: Pacer,
        on_underrun: Callable[[UnderrunCause], None],
        message_ms: int = FRAME_MESSAGE_MS,
        retains: bool = False,
    ) -> None:
        """A message holds at most ``message_ms``, and less with a short lead. ``retains`` makes ``rewind`` possible."""
        self._response_id = response_id
        self._pacer = pacer
        self._on_underrun = on_underrun
        self._max_message_samples = pacer.sample_rate * max_audio_message_ms(pacer.settings.lead_ms, message_ms) // 1000
        self._entries: deque[Entry] = deque()
        self._sent: deque[SentEntry] | None = deque() if retains else None
        self._num_sent_bytes = 0
        self._popped_s = -math.inf
        # Of audio that is made again: samples so far, and those that the reader has.
        self._num_made_again = self._num_received = 0
        # The first of these, which the reader does not get once more.
        self.num_samples_to_drop = 0
        self._num_flushes_to_drop = 0
        # Samples of messages that have not been popped yet.
        self.waiting_samples = 0
        # Samples sent, whatever was sent again since.
        self.num_sent_samples = 0
        # Audio messages.
        self.num_messages_sent = 0
        self.is_closed = False

    @property
    def is_empty(self) -> bool:
        return not self._entries

    @property
    def next_sample(self) -> int:
        """Position of the next audio message."""
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
        self._evict_sent(self._pacer.on_playback_report(played_samples, now_s))

    def drop_received(
        self, received_samples: int, played_samples: int, preroll_samples: int, received_flushes: int, now_s: float
    ) -> None:
        """Drop what a reader has received through another ring, which had the same audio from its beginning."""
        packet_samples = self._pacer.sample_rate * PACKET_MS // 1000
        next_sample = max(received_samples - preroll_samples, 0) // packet_samples * packet_samples
        self.num_sent_samples = self._num_received = received_samples
        self.num_samples_to_drop = next_sample
        if next_sample:
            self._pacer.rewind(next_sample, played_samples, now_s)
        self._num_flushes_to_drop = received_flushes

    @property
    def lacks_received(self) -> bool:
        """Return whether the audio that the reader has received was not made again yet."""
        return self._num_made_again < self.num_samples_to_drop

    def put(self, packets: Iterable[AudioPacket], now_s: float, late_cause: UnderrunCause) -> None:
        if self._num_made_again < self._num_received:
            preroll, packets = self._drop_and_split(packets)
            self._put(preroll, now_s, late_cause)
        self._put(packets, now_s, late_cause)

    def _put(self, packets: Iterable[AudioPacket], now_s: float, late_cause: UnderrunCause) -> None:
        for group in group_packets(packets, self._max_message_samples):
            num_samples = sum(packet.num_samples for packet in group)
            self._append(PacketGroup(tuple(group), num_samples, now_s, late_cause))
            self.waiting_samples += num_samples

    def put_words(self, words: Sequence[WordTime]) -> None:
        self._append(ResponseWordTimes(self._response_id, tuple(words)))

    def put_event(self, event: MarkReached | MarkupWarned) -> None:
        self._append(event)

    def put_checkpoint(self, index: int, data: str) -> None:
        self._append(CheckpointAdded(self._response_id, index, data))

    def put_flush(self, flush: int) -> None:
        if flush >= self._num_flushes_to_drop:
            self._append(FlushEntry(flush))

    def close(self, terminal: ResponseFinished) -> None:
        """Append the last entry. Nothing can be put after it."""
        self._append(terminal)
        self.is_closed = True

    def clear(self) -> None:
        """Drop what was not popped, and what was retained."""
        self._entries.clear()
        self.waiting_samples = 0
        if self._sent is not None:
            self._sent.clear()
            self._num_sent_bytes = 0

    def skip_to_end(self) -> None:
        """Drop what waits before the terminal event, if that waits, too."""
        if self.is_closed and self._entries:
            self._entries = deque([self._entries[-1]])
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
        head = self._entries.popleft()
        if self._sent is not None:
            self._retain(head, self._sent)
        match head:
            case PacketGroup():
                return self._on_sent(head, now_s)
            case FlushEntry():
                return FlushCompleted(self._response_id, head.flush, self.next_sample)
            case _:
                return head

    def freeze(self, now_s: float) -> None:
        """Stop the playback clock: the reader is cut off."""
        self._pacer.freeze(now_s)

    def rewind(self, received_samples: int, played_samples: int, preroll_samples: int, now_s: float) -> None:
        """Go back to the first entry that a reader with ``received_samples`` lacks, or ``preroll_samples`` before it.

        Raises ``ValueError`` where that was never sent, or is retained no more.
        """
        if received_samples > self.num_sent_samples:
            raise ValueError(f"received_samples is {received_samples}; {self.num_sent_samples} were sent")
        sent = self._sent or deque()
        first_sample = sent[0].start_sample if sent else self.next_sample
        if received_samples < first_sample:
            raise ValueError(f"received_samples is {received_samples}; audio from {first_sample} on is retained")
        while sent and sent[0].is_received(received_samples - preroll_samples):
            sent.popleft()
        if sent:
            self.num_messages_sent = sent[0].sequence
        self._pacer.rewind(sent[0].start_sample if sent else self.next_sample, played_samples, now_s)
        lacking = [one for one in sent if isinstance(one.entry, PacketGroup) or not one.is_received(received_samples)]
        self._entries.extendleft(one.entry for one in reversed(lacking))
        self.waiting_samples += sum(one.end_sample - one.start_sample for one in lacking)
        sent.clear()
        self._num_sent_bytes = 0

    def _drop_and_split(self, packets: Iterable[AudioPacket]) -> tuple[list[AudioPacket], list[AudioPacket]]:
        """Return the packets that the reader gets once more, and those that it lacks: no message has both."""
        preroll: list[AudioPacket] = []
        lacking: list[AudioPacket] = []
        for packet in packets:
            if self._num_made_again >= self._num_received:
                lacking.append(packet)
            elif self._num_made_again >= self.num_samples_to_drop:
                preroll.append(packet)
            self._num_made_again += packet.num_samples
        return preroll, lacking

    def _retain(self, entry: Entry, sent: deque[SentEntry]) -> None:
        start_sample = end_sample = self.next_sample
        num_bytes = 0
        if isinstance(entry, PacketGroup):
            end_sample += entry.num_samples
            num_bytes = sum(len(packet.data) for packet in entry.packets)
        sent.append(SentEntry(entry, start_sample, end_sample, self.num_messages_sent, num_bytes))
        self._num_sent_bytes += num_bytes
        self._evict_sent(end_sample - RESUME_WINDOW_S * self._pacer.sample_rate)

    def _evict_sent(self, received_samples: int) -> None:
        """Drop what a reader has, and what is beyond the size of the window."""
        while self._sent and (
            self._num_sent_bytes > RESUME_WINDOW_BYTES or self._sent[0].is_received(received_samples)
        ):
            self._num_sent_bytes -= self._sent.popleft().num_bytes

    def _append(self, entry: Entry) -> None:
        assert not self.is_closed, "an entry after the terminal event"
        self._entries.append(entry)

    def _on_sent(self, group: PacketGroup, now_s: float) -> ResponseAudio:
        start_sample = self._pacer.handed_over_samples
        was_in_time = group.ready_s <= self._pacer.underrun_deadline_s()
        underrun = self._pacer.on_sent(group.num_samples, now_s, group.late_cause)
        if underrun and not was_in_time:
            self._on_underrun(underrun)
        self.waiting_samples -= group.num_samples
        self.num_sent_samples = max(self.num_sent_samples, self.next_sample)
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
