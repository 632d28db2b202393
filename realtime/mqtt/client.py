"""A client of the bridge: opens a session on a broker, says a text and hears it."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec

from realtime.config import environment_name
from realtime.errors import RequestRefused
from realtime.integration_config import BROKER_PORTS, MqttSettings
from realtime.mqtt.broker_connector import BrokerConnector
from realtime.mqtt.connection import IncomingMessage, MqttConnection, Publication
from realtime.protocol.mqtt import messages
from realtime.protocol.mqtt.messages import AudioHeader, parse_header
from realtime.protocol.mqtt.topics import Topics

OPEN_EXPIRY_S = 5


class MqttSessionRejected(OSError):
    """Raised when no server accepted the session; the message has the reason."""


class MqttAudio(NamedTuple):
    head: AudioHeader
    data: bytes


class MqttClientSession:
    """``async with open_session(...)``; one task iterates. Every method raises ``BrokerDisconnected``."""

    def __init__(
        self, line: MqttConnection, arrivals: AsyncIterator[IncomingMessage], opened: messages.MqttOpened
    ) -> None:
        self.opened = opened
        self._line, self._arrivals = line, arrivals
        self._num_sent = 0

    async def send(self, message: messages.ClientMessage) -> None:
        """Numbered as it should be. Raises ``SessionRefused`` when the broker does not allow it."""
        numbered = msgspec.structs.replace(message, seq=self._num_sent)
        self._num_sent += 1
        with _map_broker_errors():
            await self._line.publish(Publication(topic=self.opened.inbox, payload=messages.serialize(numbered), qos=1))

    def __aiter__(self) -> AsyncIterator[MqttAudio | messages.ServerMessage]:
        return self._receive()

    async def _receive(self) -> AsyncIterator[MqttAudio | messages.ServerMessage]:
        async for arrival in self._arrivals:
            if arrival.topic == self.opened.audio:
                yield MqttAudio(parse_header(arrival.user), arrival.payload)
            elif arrival.topic == self.opened.ev:
                yield (event := messages.parse_server_message(arrival.payload))
                if isinstance(event, messages.MqttClosed):
                    return


def settings_of(url: str) -> MqttSettings:
    """Parse ``mqtt://USER:PASSWORD@HOST:PORT/TOPIC_PREFIX``, or ``mqtts``; the environment may hold the password.

    Raises ``OSError``; its message does not show the URL.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or BROKER_PORTS[parts.scheme]
    except (KeyError, ValueError):
        wanted = "mqtt://HOST:PORT or mqtts://HOST:PORT, with USER:PASSWORD@ before the host if needed"
        raise OSError(f"the broker's address must be {wanted}") from None
    if not parts.hostname:
        raise OSError("the broker's address names no host")
    user = f"{parts.username}@" if parts.username else ""
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return MqttSettings(
        url=f"{parts.scheme}://{user}{host}:{port}",
        password=unquote(parts.password) if parts.password else os.environ.get(environment_name("mqtt.password")),
        topic_prefix=parts.path.strip("/") or MqttSettings().topic_prefix,
    )


@asynccontextmanager
async def open_session(
    settings: MqttSettings, wanted: messages.MqttOpen, client: str | None = None
) -> AsyncIterator[MqttClientSession]:
    """Open a session; the server ends it with the context, also if this process dies.

    Raises ``BrokerDisconnected`` or ``SessionRefused``.
    """
    client = client or f"client-{secrets.token_hex(6)}"
    topics = Topics(settings.topic_prefix, settings.share_group)
    gone = Publication(topic=topics.will(client), qos=1)
    async with BrokerConnector(settings, client, will=gone).connected() as line:
        arrivals = line.messages()
        sid = wanted.sid or secrets.token_hex(8)
        place = topics.session(client, sid)
        with _map_broker_errors():
            for topic in (topics.responses(client), place.audio, place.events):
                await line.subscribe(topic, qos=0 if topic == place.audio else 1)
            message = messages.serialize(msgspec.structs.replace(wanted, sid=sid))
            opened = await _open(line, arrivals, topics, client, message, settings.response_timeout_s)
        try:
            yield MqttClientSession(line, arrivals, opened)
        finally:
            with suppress(RequestRefused):
                await line.publish(gone)


@contextmanager
def _map_broker_errors() -> Iterator[None]:
    """Report what the broker refuses like a refusal of a server."""
    try:
        yield
    except RequestRefused as error:
        raise MqttSessionRejected(str(error)) from None


async def _open(
    line: MqttConnection,
    arrivals: AsyncIterator[IncomingMessage],
    topics: Topics,
    client: str,
    payload: str,
    timeout_s: float,
) -> messages.MqttOpened:
    answers, tag = topics.responses(client), secrets.token_bytes(8)
    await line.publish(
        Publication(
            topic=topics.open,
            payload=payload,
            qos=1,
            response_topic=answers,
            correlation=tag,
            expiry_s=OPEN_EXPIRY_S,
        )
    )
    try:
        async with asyncio.timeout(timeout_s):
            async for arrival in arrivals:
                if arrival.topic == answers and arrival.correlation == tag:
                    break
            answer = messages.parse_answer(arrival.payload)
    except TimeoutError:
        raise MqttSessionRejected(f"no server answers on {topics.open}") from None
    if isinstance(answer, messages.MqttRefusal):
        raise MqttSessionRejected(f"{answer.error.code}: {answer.error.message}")
    return answer
