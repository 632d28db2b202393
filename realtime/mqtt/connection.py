"""A connection to a broker while it lasts: what is said on it, and what arrives."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import aiomqtt
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from realtime.errors import LocalProtocolError, RequestRefused
from realtime.mqtt.client_internals import ClientInternals
from realtime.protocol.mqtt.packet import packed, publish

log = logging.getLogger("voicewire.mqtt")

# Reason codes from here on are refusals.
REFUSED = 0x80
SEND_NO_RETAINED = 2
MAX_INFLIGHT = 20
# Maximum of MQTT: the longest length, and the bytes that encode it.
MAX_PACKET_BYTES = 268_435_460


class BrokerDisconnected(Exception):
    """The connection has ended, or was never made; the message says why."""


@dataclass(slots=True)
class BrokerLimits:
    """Limits of the broker, from its CONNACK (3.2.2.3 of MQTT 5)."""

    # Messages of QoS 1 on their way at once; as many as Mosquitto takes unless it is told otherwise.
    unacknowledged: int = MAX_INFLIGHT
    packet_bytes: int = MAX_PACKET_BYTES

    def from_connack(self, properties: object) -> None:
        self.unacknowledged = min(self.unacknowledged, getattr(properties, "ReceiveMaximum", MAX_INFLIGHT))
        self.packet_bytes = getattr(properties, "MaximumPacketSize", MAX_PACKET_BYTES)


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


class MqttConnection:
    """A connection while it lasts. Every method raises ``BrokerDisconnected`` when it does not any more."""

    def __init__(self, client: aiomqtt.Client, timeout_s: float, capacity: BrokerLimits) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._capacity = capacity
        self._broken = asyncio.Event()
        # Timeouts of pending responses of the broker.
        self._timeouts: set[asyncio.Timeout] = set()
        # Pending reason codes by packet identifier.
        self._unanswered: dict[int, asyncio.Future[int]] = {}
        self._internals = ClientInternals(client)
        self._internals.paho.on_publish = self._published
        self._internals.on_disconnected(self._cancel_pending)

    async def publish(self, publication: Publication) -> None:
        """QoS 0: until it is with the system; QoS 1: until the broker has it.

        Raises ``RequestRefused`` when the broker does not allow it, and ``LocalProtocolError`` when it is longer than
        the broker takes.
        """
        check_reason_code(publication.topic, await self._publish(publication))

    async def publish_nowait(self, publication: Publication, on_refused: Callable[[], None] = lambda: None) -> None:
        """Publish in order. ``wait_disconnected`` reports a broker that does not answer, and ``on_refused`` a refusal.
        Raises ``LocalProtocolError`` as ``publish`` does."""
        log_puback(publication.topic, await self._publish(publication), on_refused)

    async def subscribe(self, topic: str, qos: int = 1) -> None:
        """Subscribe without retained messages; raises ``RequestRefused`` if the broker does not allow it."""
        shared = topic.startswith("$share/")
        options = SubscribeOptions(qos, retainHandling=0 if shared else SEND_NO_RETAINED)
        codes = await self._await_ack(lambda: self._client.subscribe(topic, options=options, timeout=math.inf))
        if any(int(getattr(code, "value", code)) >= REFUSED for code in codes):
            raise RequestRefused("unauthorized", f"the broker refuses the subscription to {topic}", "topic")

    async def unsubscribe(self, topic: str) -> None:
        await self._await_ack(lambda: self._client.unsubscribe(topic, timeout=math.inf))

    async def messages(self) -> AsyncIterator[IncomingMessage]:
        try:
            async for message in self._client.messages:
                yield _arrival(message)
        except aiomqtt.MqttError as error:
            self._broken.set()
            raise BrokerDisconnected(reason(error)) from None

    async def set_handler(self, take: Callable[[IncomingMessage], None]) -> None:
        """Instead of ``arrivals``, until the connection is lost."""
        async for arrival in self.messages():
            take(arrival)

    async def wait_disconnected(self) -> None:
        """Wait until the connection fails, and raise ``BrokerDisconnected``."""
        await self._broken.wait()
        raise BrokerDisconnected("the broker did not answer in time, or has left")

    async def _publish(self, publication: Publication) -> int:
        """Gives the reason code of the broker's answer, which aiomqtt keeps to itself."""
        self._check_length(publication.packet(number=publication.qos or None))
        properties = PackedProperties(publication.properties())
        arguments = (publication.topic, publication.payload, publication.qos, publication.retain, properties)
        code: int = await self._await_ack(lambda: self._publish_with_paho(*arguments))
        return code

    async def _publish_with_paho(self, *arguments: Any) -> int:
        info = self._internals.paho.publish(*arguments)
        if info.rc != MQTTErrorCode.MQTT_ERR_SUCCESS:
            raise aiomqtt.MqttCodeError(info.rc, "it was not sent")
        if info.is_published():
            return 0
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._unanswered[info.mid] = answer
        try:
            return await answer
        finally:
            del self._unanswered[info.mid]

    def _published(self, client: object, given: object, number: int, code: ReasonCode, properties: object) -> None:
        if (answer := self._unanswered.get(number)) is not None:
            resolve(answer, code.value)

    def _check_length(self, packet: bytes) -> None:
        """Check the size of a packet; raises ``LocalProtocolError``."""
        if len(packet) > (limit := self._capacity.packet_bytes):
            raise LocalProtocolError(f"the broker takes {limit} bytes in a message, this one has {len(packet)}")

    async def _await_ack(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        if self._internals.is_disconnected:
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

    def _cancel_pending(self) -> None:
        """Fail all pending requests after a disconnect."""
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


def _arrival(message: aiomqtt.Message) -> IncomingMessage:
    found = message.properties
    payload = message.payload
    return IncomingMessage(
        message.topic.value,
        bytes(payload) if isinstance(payload, bytes | bytearray) else str(payload).encode(),
        message.retain,
        getattr(found, "ResponseTopic", None),
        getattr(found, "CorrelationData", None),
        getattr(found, "ContentType", None),
        tuple(getattr(found, "UserProperty", ())),
    )


class PackedProperties:
    """The part of paho-mqtt's properties interface that sending a message uses."""

    def __init__(self, packed: bytes) -> None:
        self._bytes = packed

    def pack(self) -> bytes:
        return self._bytes
