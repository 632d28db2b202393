"""A connection to a broker while it lasts: what is said on it, and what arrives."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import aiomqtt
from paho.mqtt.subscribeoptions import SubscribeOptions

from realtime.errors import Refused
from realtime.protocol.mqtt.properties import packed

REFUSED = 0x80
"""Reason codes from here on are refusals."""
SEND_NO_RETAINED = 2
MAX_UNACKNOWLEDGED = 20
MAX_PACKET_BYTES = 268_435_460
"""Of MQTT: its longest length, and the bytes that tell it."""


class BrokerLost(Exception):
    """The connection has ended, or was never made; the message says why."""


@dataclass(slots=True)
class Capacity:
    """What the broker takes of us, as its answer to our greeting says (3.2.2.3 of MQTT 5)."""

    unacknowledged: int = MAX_UNACKNOWLEDGED
    """Messages of QoS 1 on their way at once; as many as Mosquitto takes unless it is told otherwise."""
    packet_bytes: int = MAX_PACKET_BYTES

    def told(self, properties: object) -> None:
        self.unacknowledged = min(self.unacknowledged, getattr(properties, "ReceiveMaximum", MAX_UNACKNOWLEDGED))
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
        """Raises ``LocalProtocolError`` when one is too long."""
        return packed(self.content_type, self.response_topic, self.correlation, self.expiry_s, self.user)


@dataclass(frozen=True, slots=True)
class Arrival:
    topic: str
    payload: bytes
    retained: bool = False
    response_topic: str | None = None
    correlation: bytes | None = None
    content_type: str | None = None
    user: tuple[tuple[str, str], ...] = ()


class Line:
    """A connection while it lasts. Every method raises ``BrokerLost`` when it does not any more."""

    def __init__(self, client: aiomqtt.Client, timeout_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._broken = asyncio.Event()
        self._patience: set[asyncio.Timeout] = set()
        """Of those who wait for the broker."""
        client._disconnected.add_done_callback(lambda _: self._lose_patience())

    async def publish(self, publication: Publication) -> None:
        """QoS 0: until it is with the system; QoS 1: until the broker has it."""
        await self._ask(
            lambda: self._client.publish(
                publication.topic,
                publication.payload,
                publication.qos,
                publication.retain,
                Packed(publication.properties()),
                timeout=math.inf,
            )
        )

    async def post(self, publication: Publication) -> None:
        """Until it is on its way. What comes later goes after it; ``watch`` tells when the broker does not take it."""
        await self.publish(publication)

    async def subscribe(self, topic: str, qos: int = 1) -> None:
        """Nothing that was retained comes. Raises ``Refused`` when the broker does not allow it."""
        shared = topic.startswith("$share/")
        options = SubscribeOptions(qos, retainHandling=0 if shared else SEND_NO_RETAINED)
        codes = await self._ask(lambda: self._client.subscribe(topic, options=options, timeout=math.inf))
        if any(int(getattr(code, "value", code)) >= REFUSED for code in codes):
            raise Refused("unauthorized", f"the broker refuses the subscription to {topic}", "topic")

    async def unsubscribe(self, topic: str) -> None:
        await self._ask(lambda: self._client.unsubscribe(topic, timeout=math.inf))

    async def arrivals(self) -> AsyncIterator[Arrival]:
        try:
            async for message in self._client.messages:
                yield _arrival(message)
        except aiomqtt.MqttError as error:
            self._broken.set()
            raise BrokerLost(reason(error)) from None

    async def listen(self, take: Callable[[Arrival], None]) -> None:
        """Instead of ``arrivals``, until the connection is lost."""
        async for arrival in self.arrivals():
            take(arrival)

    async def watch(self) -> None:
        """Raises ``BrokerLost`` once something went wrong, whoever met it first."""
        await self._broken.wait()
        raise BrokerLost("the broker did not answer in time, or has left")

    async def _ask(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        if self._client._disconnected.done():
            self._broken.set()
        if self._broken.is_set():
            raise BrokerLost("the connection is broken")
        try:  # aiomqtt's own timeout may swallow a cancellation in Python 3.11
            async with asyncio.timeout(self._timeout_s) as patience:
                self._patience.add(patience)
                try:
                    return await ask()
                finally:
                    self._patience.discard(patience)
        except (aiomqtt.MqttError, TimeoutError, ValueError, RuntimeError) as error:
            self._broken.set()
            raise BrokerLost(reason(error)) from None

    def _lose_patience(self) -> None:
        """A broker that has left answers nobody."""
        for patience in self._patience:
            if not patience.expired():
                patience.reschedule(asyncio.get_running_loop().time())


def reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "the broker did not answer in time"
    return str(error) or type(error).__name__


def _arrival(message: aiomqtt.Message) -> Arrival:
    found = message.properties
    payload = message.payload
    return Arrival(
        message.topic.value,
        bytes(payload) if isinstance(payload, bytes | bytearray) else str(payload).encode(),
        message.retain,
        getattr(found, "ResponseTopic", None),
        getattr(found, "CorrelationData", None),
        getattr(found, "ContentType", None),
        tuple(getattr(found, "UserProperty", ())),
    )


class Packed:
    """All that paho-mqtt asks of the properties of a message."""

    def __init__(self, packed: bytes) -> None:
        self._bytes = packed

    def pack(self) -> bytes:
        return self._bytes
