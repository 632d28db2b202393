"""One connection to a broker, and the next one when it is lost. Everything that aiomqtt and paho-mqtt need to be told
stands here."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import aiomqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from realtime.config import ConfigError
from realtime.device_config import MqttSettings
from realtime.errors import Refused
from realtime.protocol.mqtt.properties import packed

log = logging.getLogger("voicewire.mqtt")

NODELAY = (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
REFUSED = 0x80
"""Reason codes from here on are refusals."""
SEND_NO_RETAINED = 2
STEADY_S = 10.0
"""A connection that lasted so long was a good one: the next is tried at once."""
HARD_LIMIT = 4
"""The broker keeps messages of so many times ``max_message_bytes`` from us."""

quiet = logging.getLogger("voicewire.mqtt.client")
quiet.setLevel(logging.CRITICAL)  # it writes a line for every message that it drops


class BrokerLost(Exception):
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

    async def publish(self, publication: Publication) -> None:
        """QoS 0: until it is with the system; QoS 1: until the broker has it."""
        await self._ask(
            lambda: self._client.publish(
                publication.topic,
                publication.payload,
                publication.qos,
                publication.retain,
                Packed(publication),
                timeout=math.inf,
            )
        )

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
            raise BrokerLost(_reason(error)) from None

    async def watch(self) -> None:
        """Raises ``BrokerLost`` once something went wrong, whoever met it first."""
        await self._broken.wait()
        raise BrokerLost("the broker did not answer in time, or has left")

    async def _ask(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        if self._broken.is_set():
            raise BrokerLost("the connection is broken")
        try:
            async with asyncio.timeout(self._timeout_s):  # aiomqtt's own may swallow a cancellation in Python 3.11
                return await ask()
        except (aiomqtt.MqttError, TimeoutError, ValueError, RuntimeError) as error:
            self._broken.set()
            raise BrokerLost(_reason(error)) from None


class Broker:
    """``run`` keeps a connection. ``will`` is what the broker says when it loses us."""

    def __init__(
        self,
        settings: MqttSettings,
        identifier: str,
        *,
        will: Publication | None = None,
        max_message_bytes: int = 262_144,
    ) -> None:
        self._settings, self._identifier = settings, identifier
        self._will = will
        self._max_bytes = HARD_LIMIT * max_message_bytes
        self._tls = tls_context(settings)

    async def run(self, serve: Callable[[Line], Awaitable[None]]) -> None:
        """``serve`` each connection until it is lost, again and again."""
        pause_s, now_s = self._settings.retry_min_s, asyncio.get_running_loop().time
        while True:
            began_s = now_s()
            try:
                async with self.connected() as line:
                    log.info("connected to the broker", extra={"host": self._settings.host})
                    await serve(line)
            except (BrokerLost, Refused) as error:
                if now_s() - began_s >= STEADY_S:
                    pause_s = self._settings.retry_min_s
                log.warning("no broker: %s; trying again in %.2f s", error, pause_s)
            await asyncio.sleep(pause_s * random.uniform(0.75, 1.25))
            pause_s = min(2 * pause_s, self._settings.retry_max_s)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Line]:
        """Raises ``BrokerLost``."""
        client = self._client()
        await self._connect(client)
        try:
            yield Line(client, self._settings.timeout_s)
        finally:
            await _leave(client)

    async def _connect(self, client: aiomqtt.Client) -> None:
        """Not to be torn in the middle: aiomqtt would leave its socket and a task behind."""
        connecting = asyncio.ensure_future(client.__aenter__())
        try:
            await asyncio.shield(connecting)
        except aiomqtt.MqttError as error:
            _abandon(client)
            raise BrokerLost(_reason(error)) from None
        except asyncio.CancelledError:
            await asyncio.wait([connecting])
            if connecting.exception() is None:
                await _leave(client)
            else:
                _abandon(client)
            raise

    def _client(self) -> aiomqtt.Client:
        settings = self._settings
        properties = Properties(PacketTypes.CONNECT)
        properties.MaximumPacketSize = self._max_bytes
        client = aiomqtt.Client(
            settings.host or "",
            settings.port,
            username=settings.username,
            password=settings.password,
            identifier=self._identifier,
            protocol=aiomqtt.ProtocolVersion.V5,
            clean_start=True,
            timeout=settings.timeout_s,
            keepalive=settings.keepalive_s,
            max_queued_incoming_messages=settings.max_waiting_messages,
            properties=properties,
            tls_context=self._tls,
            socket_options=[NODELAY],
            will=None if self._will is None else _will(self._will),
            logger=quiet,
        )
        client._client.connect_timeout = settings.timeout_s  # aiomqtt has no other way to say so
        return client


class ClosingSocket(ssl.SSLSocket):
    """Closed when nothing comes of it, which paho-mqtt forgets."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except OSError:
            self.close()
            raise


def tls_context(settings: MqttSettings) -> ssl.SSLContext | None:
    """Raises ``ConfigError``."""
    if not settings.tls:
        return None
    try:
        context = ssl.create_default_context(cafile=settings.tls_ca)
        context.sslsocket_class = ClosingSocket
        if settings.tls_certificate is not None:
            context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        files = f"mqtt.tls_ca = {settings.tls_ca}, mqtt.tls_certificate = {settings.tls_certificate}"
        raise ConfigError(f"{files}, mqtt.tls_key = {settings.tls_key}: {error}") from error
    return context


async def _leave(client: aiomqtt.Client) -> None:
    with suppress(aiomqtt.MqttError):
        await client.__aexit__(None, None, None)
    _abandon(client)


def _abandon(client: aiomqtt.Client) -> None:
    """Close what is still open of a connection that came to nothing; aiomqtt itself would wait for its keep-alive."""
    client._client._sock_close()
    if client._disconnected.done():
        client._disconnected.exception()  # nobody else may have asked for it


def _reason(error: Exception) -> str:
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


def _will(publication: Publication) -> aiomqtt.Will:
    properties = Properties(PacketTypes.WILLMESSAGE)  # paho looks at the class of these
    if publication.expiry_s is not None:
        properties.MessageExpiryInterval = publication.expiry_s
    return aiomqtt.Will(publication.topic, publication.payload, publication.qos, publication.retain, properties)


class Packed:
    """All that paho-mqtt asks of the properties of a message."""

    def __init__(self, publication: Publication) -> None:
        self._bytes = packed(
            publication.content_type,
            publication.response_topic,
            publication.correlation,
            publication.expiry_s,
            publication.user,
        )

    def pack(self) -> bytes:
        return self._bytes
