"""A connection to a broker while it lasts: what is said on it, and what arrives."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import aiomqtt
from paho.mqtt.subscribeoptions import SubscribeOptions

from realtime.errors import LocalProtocolError, RequestRefused
from realtime.mqtt.batched_client import BatchedClient
from realtime.protocol.mqtt.messages import JSON
from realtime.protocol.mqtt.packet import QOS_2, PublishPacket, acknowledged, packed, parse_publish, publish
from realtime.protocol.mqtt311 import PUBACK, PUBLISH, MqttPacketReader, puback
from sessions.clock import WakeEvent, now_s

log = logging.getLogger("voicewire.mqtt")

# Reason codes from here on are refusals.
REFUSED = 0x80
SEND_NO_RETAINED = 2


class BrokerDisconnected(Exception):
    """The connection has ended, or was never made; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    topic: str
    payload: bytes | str = b""
    qos: int = 0
    retain: bool = False
    content_type: str | None = None
    correlation: bytes | None = None
    response_topic: str | None = None
    expiry_s: int | None = None
    user: tuple[tuple[str, str], ...] = ()

    @classmethod
    def from_json(cls, topic: str, payload: str, **more: Any) -> Self:
        """A JSON message, with an answer of the broker."""
        return cls(topic=topic, payload=payload, qos=1, content_type=JSON, **more)

    def properties(self) -> bytes:
        """Return the packed properties; raises ``LocalProtocolError`` if one is too long."""
        return packed(self.content_type, self.response_topic, self.correlation, self.expiry_s, self.user)

    def packet(self, number: int | None) -> bytes:
        """Encode a publication; QoS 1 has a ``number``. Raises ``LocalProtocolError`` when a part is too long."""
        payload = self.payload if isinstance(self.payload, bytes) else self.payload.encode()
        return publish(self.topic, self.properties(), payload, self.retain, number)


@dataclass(frozen=True, slots=True)
class IncomingMessage:
    topic: str
    payload: bytes
    retained: bool = False
    response_topic: str | None = None
    correlation: bytes | None = None
    content_type: str | None = None
    user: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class PendingPublish:
    at_s: float
    # Called with the reason code of the broker's answer.
    ack: Callable[[int], None]


class MqttConnection:
    """A connection while it lasts. Every method raises ``BrokerDisconnected`` when it does not any more."""

    def __init__(self, client: BatchedClient, timeout_s: float, max_waiting: int, max_bytes: int) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._max_waiting = max_waiting
        self._broken = asyncio.Event()
        # Timeouts of pending responses of the broker.
        self._timeouts: set[asyncio.Timeout] = set()
        self._packets = MqttPacketReader(max_bytes)
        self._arrived: deque[IncomingMessage] = deque()
        self._handler: Callable[[IncomingMessage], None] = self._queue_message
        self._alarm = WakeEvent()
        self._turn = asyncio.Lock()
        self._num_in_line = 0
        self._window = asyncio.Semaphore(client.limits.unacknowledged)
        # Pending publishes by packet identifier, in the order they were sent.
        self._unacknowledged: dict[int, PendingPublish] = {}
        if not client.open_socket(self._read, self._on_end):
            raise BrokerDisconnected("the broker closed the connection at once")

    async def publish(self, publication: Publication) -> None:
        """QoS 0: until it is with the system; QoS 1: until the broker has it.

        Raises ``RequestRefused`` when the broker does not allow it, and ``LocalProtocolError`` when it is longer than
        the broker takes.
        """
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        await self._flush(publication, partial(resolve, answer))
        if publication.qos:
            check_reason_code(publication.topic, await self._await_ack(lambda: answer))

    async def publish_nowait(self, publication: Publication, on_refused: Callable[[], None] = lambda: None) -> None:
        """Publish in order. ``wait_disconnected`` reports a broker that does not answer, and ``on_refused`` a refusal.
        Raises ``LocalProtocolError`` as ``publish`` does."""
        await self._flush(publication, lambda code: log_puback(publication.topic, code, on_refused))

    async def subscribe(self, topic: str, qos: int = 1) -> None:
        """Subscribe without retained messages; raises ``RequestRefused`` if the broker does not allow it."""
        shared = topic.startswith("$share/")
        options = SubscribeOptions(qos, retainHandling=0 if shared else SEND_NO_RETAINED)
        codes = await self._await_ack(lambda: self._client.client.subscribe(topic, options=options, timeout=math.inf))
        if any(int(getattr(code, "value", code)) >= REFUSED for code in codes):
            raise RequestRefused("unauthorized", f"the broker refuses the subscription to {topic}", "topic")

    async def unsubscribe(self, topic: str) -> None:
        await self._await_ack(lambda: self._client.client.unsubscribe(topic, timeout=math.inf))

    async def messages(self) -> AsyncIterator[IncomingMessage]:
        while True:
            while self._arrived:
                yield self._arrived.popleft()
            self._require_connection()
            await self._alarm.wait()

    async def set_handler(self, take: Callable[[IncomingMessage], None]) -> None:
        """``take`` is called while packets are read."""
        self._handler = take
        try:
            while self._arrived:
                take(self._arrived.popleft())
            while True:
                self._require_connection()
                await self._alarm.wait()
        finally:
            self._handler = self._queue_message

    async def wait_disconnected(self) -> None:
        """Wait until the connection fails, and raise ``BrokerDisconnected``."""
        while not self._broken.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timeout_s / 4):
                    await self._broken.wait()
            first = next(iter(self._unacknowledged.values()), None)
            if first is not None and now_s() - first.at_s > self._timeout_s:
                self._broken.set()
        raise BrokerDisconnected("the broker did not answer in time, or has left")

    async def _flush(self, publication: Publication, answered: Callable[[int], None]) -> None:
        if publication.qos == 0:
            if self._num_in_line or not self._client.socket.has_capacity():
                await self._await_ack(self._wait_for_quota)
            self._require_connection()
            self._send(publication)
            return
        await (self._await_ack(self._window.acquire) if self._window.locked() else self._window.acquire())
        try:
            self._require_connection()
            number = self._client.next_packet_id()
            self._send(publication, number)
        except Exception:
            self._window.release()
            raise
        self._unacknowledged[number] = PendingPublish(now_s(), answered)

    async def _wait_for_quota(self) -> None:
        """Wait for room: first come, first served, message by message."""
        self._num_in_line += 1
        try:
            async with self._turn:
                await self._client.socket.free_bytes()
        finally:
            self._num_in_line -= 1

    def _send(self, publication: Publication, number: int | None = None) -> None:
        self._client.write()  # packets of paho-mqtt precede it
        packet = publication.packet(number)
        self._check_length(packet)
        self._client.socket.send(packet)

    def _acknowledge(self, number: int, code: int) -> None:
        if (sent := self._unacknowledged.pop(number, None)) is not None:
            self._window.release()
            sent.ack(code)

    def _require_connection(self) -> None:
        if self._client.is_disconnected:
            self._broken.set()
            raise BrokerDisconnected(self._client.end_reason)
        if self._broken.is_set():
            raise BrokerDisconnected("the connection is broken")

    def _queue_message(self, arrival: IncomingMessage) -> None:
        if len(self._arrived) < self._max_waiting:
            self._arrived.append(arrival)
            self._alarm.set()

    def _read(self, found: bytes) -> None:
        with self._client.ending_when_broken():
            if not found:
                self._client.read(found)
            for packet in self._packets.push(found):
                if not self._client.has_socket:
                    return  # closed by an earlier packet
                if packet.kind == PUBLISH and not packet.flags & QOS_2:
                    self._handle_packets(parse_publish(packet))
                elif packet.kind == PUBACK:
                    self._acknowledge(*acknowledged(packet))
                else:
                    self._client.read(packet.as_sent())

    def _handle_packets(self, found: PublishPacket) -> None:
        if found.packet_id is not None:
            self._client.socket.send(puback(found.packet_id))
        properties = (found.retained, found.response_topic, found.correlation, found.content_type, tuple(found.user))
        self._handler(IncomingMessage(found.topic, found.payload, *properties))

    def _check_length(self, packet: bytes) -> None:
        """Check the size of a packet; raises ``LocalProtocolError``."""
        if len(packet) > (limit := self._client.limits.packet_bytes):
            raise LocalProtocolError(f"the broker takes {limit} bytes in a message, this one has {len(packet)}")

    async def _await_ack(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        if self._client.is_disconnected:
            self._broken.set()
        if self._broken.is_set():
            raise BrokerDisconnected("the connection is broken")
        try:  # aiomqtt's own timeout may swallow a cancellation in Python 3.11
            async with asyncio.timeout(self._timeout_s) as timeout:
                self._timeouts.add(timeout)
                try:
                    return await ask()
                finally:
                    self._timeouts.discard(timeout)
        except (aiomqtt.MqttError, TimeoutError, ValueError, RuntimeError) as error:
            self._broken.set()
            raise BrokerDisconnected(reason(error)) from None

    def _on_end(self) -> None:
        """Fail all pending requests."""
        self._alarm.set()
        for timeout in self._timeouts:
            if not timeout.expired():
                timeout.reschedule(asyncio.get_running_loop().time())


def resolve(answer: asyncio.Future[int], code: int) -> None:
    """Resolve a request, unless its waiter is gone."""
    if not answer.done():
        answer.set_result(code)


def check_reason_code(topic: str, code: int) -> None:
    """Check a reason code; raises ``RequestRefused`` for a refusal."""
    if code >= REFUSED:
        raise RequestRefused("unauthorized", f"the broker refuses a message to {topic}: reason code {code}", "topic")


def log_puback(topic: str, code: int, on_refused: Callable[[], None]) -> None:
    """Handle an acknowledgment without a waiter."""
    if code >= REFUSED:
        log.warning("broker rejected publish to %s: reason code %d", topic, code)
        on_refused()


def reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "the broker did not answer in time"
    return str(error) or type(error).__name__
