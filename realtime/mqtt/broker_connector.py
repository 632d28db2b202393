"""Connect to a broker, and reconnect when the connection is lost."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import aiomqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from realtime.config import ConfigError
from realtime.errors import RequestRefused
from realtime.integration_config import MqttSettings, parse_broker_url
from realtime.mqtt.batched_client import BatchedClient
from realtime.mqtt.connection import BrokerDisconnected, MqttConnection, Publication, reason

log = logging.getLogger("voicewire.mqtt")

NODELAY = (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
# Bounds the send buffer: megabytes in it are seconds on a slow network.
NOTSENT_LOWAT = [(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, 65_536)] if hasattr(socket, "TCP_NOTSENT_LOWAT") else []
# A connection that lasted so long was a good one: the next is tried at once.
STABLE_AFTER_S = 10.0
# Maximum packet size that the broker is sent, in multiples of ``max_message_bytes``.
HARD_LIMIT = 4

quiet = logging.getLogger("voicewire.mqtt.client")
quiet.setLevel(logging.CRITICAL)  # it writes a line for every message that it drops


class BrokerConnector:
    """Keep a connection to a broker, which publishes ``will`` when the connection breaks."""

    def __init__(
        self,
        settings: MqttSettings,
        identifier: str,
        *,
        will: Publication | None = None,
        max_message_bytes: int = 262_144,
    ) -> None:
        assert settings.url is not None
        self._settings, self._identifier = settings, identifier
        self._address = parse_broker_url(settings.url)
        self._will = will
        self._max_bytes = HARD_LIMIT * max_message_bytes
        self._tls = tls_context(settings)

    async def run(self, serve: Callable[[MqttConnection], Awaitable[None]]) -> None:
        """``serve`` each connection until it is lost, again and again."""
        pause_s, now_s = self._settings.retry_min_s, asyncio.get_running_loop().time
        while True:
            began_s = now_s()
            try:
                async with self.connected() as line:
                    log.info("connected to the broker", extra={"host": self._address.host})
                    await serve(line)
            except (BrokerDisconnected, RequestRefused) as error:
                if now_s() - began_s >= STABLE_AFTER_S:
                    pause_s = self._settings.retry_min_s
                log.warning("broker unavailable: %s; retrying in %.2f s", error, pause_s)
            await asyncio.sleep(pause_s * random.uniform(0.75, 1.25))
            pause_s = min(2 * pause_s, self._settings.retry_max_s)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[MqttConnection]:
        """Connect while the context is open; raises ``BrokerDisconnected``."""
        settings = self._settings
        client = BatchedClient(self._client(), settings.response_timeout_s)
        await self._connect(client)
        try:
            yield MqttConnection(client, settings.response_timeout_s, settings.max_queued_messages, self._max_bytes)
        finally:
            await _disconnect(client)

    async def _connect(self, client: BatchedClient) -> None:
        """Connect, shielded from cancellation: otherwise aiomqtt leaves a socket and a task behind."""
        connecting = asyncio.ensure_future(client.client.__aenter__())
        try:
            await asyncio.shield(connecting)
        except aiomqtt.MqttError as error:
            client.force_close()
            raise BrokerDisconnected(reason(error)) from None
        except asyncio.CancelledError:
            await asyncio.wait([connecting])
            if connecting.exception() is None:
                await _disconnect(client)
            else:
                client.force_close()
            raise

    def _client(self) -> aiomqtt.Client:
        settings, address = self._settings, self._address
        properties = Properties(PacketTypes.CONNECT)
        properties.MaximumPacketSize = self._max_bytes
        return aiomqtt.Client(
            address.host,
            address.port,
            username=address.username,
            password=settings.password,
            identifier=self._identifier,
            protocol=aiomqtt.ProtocolVersion.V5,
            clean_start=True,
            timeout=settings.response_timeout_s,
            keepalive=settings.keepalive_s,
            max_queued_incoming_messages=settings.max_queued_messages,
            properties=properties,
            tls_context=self._tls,
            socket_options=[NODELAY, *NOTSENT_LOWAT],
            will=None if self._will is None else _will(self._will),
            logger=quiet,
        )


class AutoClosingSslSocket(ssl.SSLSocket):
    """Closes itself when the handshake fails, which paho-mqtt does not."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except OSError:
            self.close()
            raise


def tls_context(settings: MqttSettings) -> ssl.SSLContext | None:
    """Return the TLS context of the settings, if any; raises ``ConfigError``."""
    if settings.url is None or not parse_broker_url(settings.url).tls:
        return None
    try:
        context = ssl.create_default_context(cafile=settings.tls_ca)
        context.sslsocket_class = AutoClosingSslSocket
        if settings.tls_certificate is not None:
            context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        files = f"mqtt.tls_ca = {settings.tls_ca}, mqtt.tls_certificate = {settings.tls_certificate}"
        raise ConfigError(f"{files}, mqtt.tls_key = {settings.tls_key}: {error}") from error
    return context


async def _disconnect(client: BatchedClient) -> None:
    with suppress(aiomqtt.MqttError):
        await client.client.__aexit__(None, None, None)
    client.force_close()


def _will(publication: Publication) -> aiomqtt.Will:
    properties = Properties(PacketTypes.WILLMESSAGE)  # paho checks their class
    if publication.expiry_s is not None:
        properties.MessageExpiryInterval = publication.expiry_s
    return aiomqtt.Will(publication.topic, publication.payload, publication.qos, publication.retain, properties)
