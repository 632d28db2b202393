"""Reads and writes of one turn of the event loop, gathered into one of each; messages are packed and read by ourselves.

By itself paho-mqtt asks the system three times for every packet that comes, takes about one packet a turn, and writes
each packet by itself, after two changes to what the loop waits for. It still makes and keeps the connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

import aiomqtt

from realtime.mqtt.batched_socket import BatchedSocket
from realtime.mqtt.connection import (
    BrokerDisconnected,
    BrokerLimits,
    IncomingMessage,
    MqttConnection,
    Publication,
    check_reason_code,
    log_puback,
    resolve,
)
from realtime.protocol.mqtt.packet import QOS_2, PublishPacket, acknowledged, parse_publish
from realtime.protocol.mqtt311 import PUBACK, PUBLISH, MqttPacketReader, puback
from sessions.clock import WakeEvent, now_s


@dataclass(frozen=True, slots=True)
class PendingPublish:
    at_s: float
    # Called with the reason code of the broker's answer.
    ack: Callable[[int], None]


class BatchedMqttConnection(MqttConnection):
    """Does what a ``Line`` does. All but subscriptions goes past aiomqtt. The constructor raises
    ``BrokerDisconnected``.
    """

    def __init__(
        self, client: aiomqtt.Client, timeout_s: float, max_waiting: int, max_bytes: int, capacity: BrokerLimits
    ) -> None:
        super().__init__(client, timeout_s, capacity)
        self._packets = MqttPacketReader(max_bytes)
        self._max_waiting = max_waiting
        self._arrived: deque[IncomingMessage] = deque()
        self._handler: Callable[[IncomingMessage], None] = self._queue_message
        self._alarm = WakeEvent()
        self._turn = asyncio.Lock()
        self._num_in_line = 0
        self._window = asyncio.Semaphore(capacity.unacknowledged)
        # Pending publishes by packet identifier, in the order they were sent.
        self._unacknowledged: dict[int, PendingPublish] = {}
        self._paho = self._internals.paho
        if self._internals.socket is None:
            raise BrokerDisconnected("the broker closed the connection at once")
        self._socket = self._internals.socket = BatchedSocket(self._internals.socket, self._read, self._write)
        self._paho.on_socket_register_write = lambda *_: self._socket.schedule_write()
        self._paho.on_socket_unregister_write = None
        self._internals.on_disconnected(self._alarm.set)

    async def publish(self, publication: Publication) -> None:
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        await self._flush(publication, partial(resolve, answer))
        if publication.qos:
            check_reason_code(publication.topic, await self._await_ack(lambda: answer))

    async def publish_nowait(self, publication: Publication, on_refused: Callable[[], None] = lambda: None) -> None:
        await self._flush(publication, lambda code: log_puback(publication.topic, code, on_refused))

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
        while not self._broken.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timeout_s / 4):
                    await self._broken.wait()
            first = next(iter(self._unacknowledged.values()), None)
            if first is not None and now_s() - first.at_s > self._timeout_s:
                self._broken.set()
        await super().wait_disconnected()

    async def _flush(self, publication: Publication, answered: Callable[[int], None]) -> None:
        if publication.qos == 0:
            if self._num_in_line or not self._socket.has_capacity():
                await self._await_ack(self._wait_for_quota)
            self._require_connection()
            self._send(publication)
            return
        await (self._await_ack(self._window.acquire) if self._window.locked() else self._window.acquire())
        try:
            self._require_connection()
            number = self._internals.next_packet_id()
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
                await self._socket.free_bytes()
        finally:
            self._num_in_line -= 1

    def _send(self, publication: Publication, number: int | None = None) -> None:
        if self._paho.want_write():
            self._write()  # what was said before leaves before
        packet = publication.packet(number)
        self._check_length(packet)
        self._socket.send(packet)

    def _acknowledge(self, number: int, code: int) -> None:
        if (sent := self._unacknowledged.pop(number, None)) is not None:
            self._window.release()
            sent.ack(code)

    def _require_connection(self) -> None:
        if self._internals.is_disconnected:
            self._broken.set()
            raise BrokerDisconnected(str(self._internals.disconnect_error or "the connection was closed"))
        if self._broken.is_set():
            raise BrokerDisconnected("the connection is broken")

    def _queue_message(self, arrival: IncomingMessage) -> None:
        if len(self._arrived) < self._max_waiting:
            self._arrived.append(arrival)
            self._alarm.set()

    def _read(self, found: bytes) -> None:
        with self._ending_when_broken():
            if not found:
                self._read_by_paho(found)
            for packet in self._packets.push(found):
                if self._internals.socket is None:
                    return  # closed by an earlier packet
                if packet.kind == PUBLISH and not packet.flags & QOS_2:
                    self._handle_packets(parse_publish(packet))
                elif packet.kind == PUBACK:
                    self._acknowledge(*acknowledged(packet))
                else:
                    self._read_by_paho(packet.as_sent())

    def _read_by_paho(self, data: bytes) -> None:
        self._socket.put(data)
        self._paho.loop_read()

    def _handle_packets(self, found: PublishPacket) -> None:
        if found.packet_id is not None:
            self._socket.send(puback(found.packet_id))
        properties = (found.retained, found.response_topic, found.correlation, found.content_type, tuple(found.user))
        self._handler(IncomingMessage(found.topic, found.payload, *properties))

    def _write(self) -> None:
        with self._ending_when_broken():
            self._paho.loop_write()

    @contextmanager
    def _ending_when_broken(self) -> Iterator[None]:
        """End the connection on a malformed packet, as aiomqtt does."""
        try:
            yield
        except Exception as fault:
            self._internals.disconnect(fault)
            self._socket.close()
