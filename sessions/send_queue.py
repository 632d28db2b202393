"""What a response has ready, in order, and when each part of it may leave. Pure: time is passed in."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from sessions.alignment.word_times import WordTime
from sessions.audio.pacer import Pacer, PlayoutUnderrun, UnderrunCause
from sessions.events import FlushCompleted, ResponseAudio, ResponseWordTimes

# Packets made together leave together, the four of a codec frame in any case where the lead is no shorter.
FRAME_MESSAGE_MS = 80
# Messages that a long lead is sent in.
MESSAGES_IN_LEAD = 8


class AudioPacket(Protocol):
    @property
    def data(self) -> bytes: ...

    @property
    def num_samples(self) -> int: ...


@dataclass(frozen=True, slots=True)
class PacketGroup:
    """Packets that leave together."""

    packets: tuple[AudioPacket, ...]
    num_samples: int
    ready_s: float
    # Whose fault it is if the listener had to wait for it.
    late_cause: UnderrunCause


class SendQueue:
    """Messages, word times and flush numbers, first in first out; counts their sequence and their samples."""

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
        self._max_message_samples = pacer.sample_rate * max_message_ms(pacer.settings.lead_ms, message_ms) // 1000
        self._waiting: deque[PacketGroup | ResponseWordTimes | int] = deque()
        # Of messages that have not been taken yet.
        self.waiting_samples = 0
        # Audio messages.
        self.num_messages_sent = 0
        self._taken_s = -math.inf

    @property
    def is_empty(self) -> bool:
        return not self._waiting

    @property
    def num_sent_samples(self) -> int:
        return self._pacer.handed_over_samples

    def played_samples(self, now_s: float) -> int:
        """Where the listener is, as ``ResponseAudio.start_sample`` counts."""
        return self._pacer.played_samples(now_s)

    def left_ms(self, now_s: float) -> float:
        """What the listener has still to hear of all there is."""
        return 1000 * self.waiting_samples / self._pacer.sample_rate + self.lead_ms(now_s)

    def lead_ms(self, now_s: float) -> float:
        """What was handed over and not yet played."""
        return 1000 * self._pacer.lead_samples(now_s) / self._pacer.sample_rate

    def report(self, played_samples: int, now_s: float) -> None:
        """The client says where its listener is."""
        self._pacer.on_playback_report(played_samples, now_s)

    def put(self, packets: Iterable[AudioPacket], now_s: float, late_cause: UnderrunCause) -> None:
        for group in group_packets(packets, self._max_message_samples):
            num_samples = sum(packet.num_samples for packet in group)
            self._waiting.append(PacketGroup(tuple(group), num_samples, now_s, late_cause))
            self.waiting_samples += num_samples

    def put_words(self, words: Sequence[WordTime]) -> None:
        self._waiting.append(ResponseWordTimes(self._response_id, tuple(words)))

    def put_flush(self, flush: int) -> None:
        self._waiting.append(flush)

    def due_s(self, now_s: float) -> float | None:
        """When ``take`` has something to give; ``None`` while nothing waits."""
        if not self._waiting:
            return None
        head = self._waiting[0]
        return self._pacer.due_s(head.num_samples, now_s) if isinstance(head, PacketGroup) else now_s

    def unread_s(self, now_s: float) -> float:
        """How long audio has been there and nothing was taken."""
        head = next((item for item in self._waiting if isinstance(item, PacketGroup)), None)
        return 0.0 if head is None else now_s - max(head.ready_s, self._taken_s)

    def get_due(self, now_s: float) -> ResponseAudio | ResponseWordTimes | FlushCompleted:
        """What is due."""
        self._taken_s = now_s
        head = self._waiting.popleft()
        match head:
            case PacketGroup():
                return self._on_sent(head, now_s)
            case ResponseWordTimes():
                return head
            case flush:
                return FlushCompleted(self._response_id, flush, self.num_sent_samples)

    def clear(self) -> None:
        self._waiting.clear()
        self.waiting_samples = 0

    def _on_sent(self, message: PacketGroup, now_s: float) -> ResponseAudio:
        start_sample, was_in_time = (
            self._pacer.handed_over_samples,
            message.ready_s <= self._pacer.underrun_deadline_s(),
        )
        underrun = self._pacer.on_sent(message.num_samples, now_s, message.late_cause)
        if underrun and not was_in_time:
            self._on_underrun(underrun)
        self.waiting_samples -= message.num_samples
        sequence, self.num_messages_sent = self.num_messages_sent, self.num_messages_sent + 1
        packets = tuple(packet.data for packet in message.packets)
        return ResponseAudio(self._response_id, sequence, start_sample, message.num_samples, packets)


def max_message_ms(lead_ms: int | None, message_ms: int) -> int:
    """At most half of a short lead, so that a message never waits for all of it to be played."""
    if lead_ms is None:
        return message_ms
    return min(message_ms, max(lead_ms // MESSAGES_IN_LEAD, min(FRAME_MESSAGE_MS, lead_ms // 2)))


def group_packets(packets: Iterable[AudioPacket], max_samples: int) -> Iterable[Sequence[AudioPacket]]:
    """In order, each group as long as fits and at least one packet."""
    group: list[AudioPacket] = []
    for packet in packets:
        if group and sum(one.num_samples for one in group) + packet.num_samples > max_samples:
            yield group
            group = []
        group.append(packet)
    if group:
        yield group
