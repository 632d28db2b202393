"""Serves sessions through a broker: they are controlled by messages on topics (docs/reference/mqtt-topics.md)."""

from __future__ import annotations

import asyncio
import re
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from realtime.calls.call_registry import CallRegistry
from realtime.errors import LocalProtocolError, RequestRefused
from realtime.mqtt.broker_connector import BrokerConnector
from realtime.mqtt.connection import MqttConnection, Publication
from realtime.mqtt.connection_handler import MqttConnectionHandler
from realtime.mqtt.publishers import offline
from realtime.protocol.mqtt.messages import MqttClosed, serialize
from realtime.protocol.mqtt.topics import Topics

if TYPE_CHECKING:
    from realtime.server import SpeechServer

DISCONNECTED_CODE = "broker_lost"
SESSION_END_EXPIRY_S = 60
MAX_NAME_CHARS = 32


class MqttBridge:
    """Serve sessions through the broker at ``mqtt.url``, if there is one. The constructor raises ``ConfigError``."""

    def __init__(self, server: SpeechServer, switchboard: CallRegistry) -> None:
        settings = server.config.mqtt
        self._server, self._switchboard, self._settings = server, switchboard, settings
        self._topics = Topics(settings.topic_prefix, settings.share_group)
        self.worker = worker_name(settings.server_name)
        # Set while the broker is connected.
        self.handler: MqttConnectionHandler | None = None
        # Event topics of sessions that were lost with the connection.
        self._lost_event_topics: list[str] = []
        if settings.url is None:
            return
        self._owner = server.gatekeeper.resolve_owner("mqtt.default_key_name", settings.default_key_name)
        self._broker = BrokerConnector(
            settings,
            f"voicewire-{self.worker}",
            will=offline(self._topics, self.worker),
            max_message_bytes=server.config.limits.max_message_bytes,
        )

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        if self._settings.url is None:
            yield
            return
        running = asyncio.create_task(self._broker.run(self._serve), name="voicewire mqtt")
        try:
            yield
        finally:
            running.cancel()
            await asyncio.wait([running])

    async def _serve(self, line: MqttConnection) -> None:
        """Serve one broker connection; raises ``BrokerDisconnected`` after all of its sessions have ended."""
        await self._publish_session_ends(line)
        handler = self.handler = MqttConnectionHandler(
            self._server, self._switchboard, self._owner, self._topics, self.worker, line
        )
        try:
            await handler.run()
        finally:
            self._lost_event_topics += handler.sessions.lost_event_topics
            self.handler = None

    async def _publish_session_ends(self, line: MqttConnection) -> None:
        closed = serialize(MqttClosed(reason=DISCONNECTED_CODE))
        while self._lost_event_topics:
            topic = self._lost_event_topics[-1]
            with suppress(RequestRefused, LocalProtocolError):
                await line.publish(Publication.from_json(topic, closed, expiry_s=SESSION_END_EXPIRY_S))
            self._lost_event_topics.pop()


def worker_name(given: str | None) -> str:
    """Return an id of this process and start: a server may have several processes."""
    name = re.sub(r"[^A-Za-z0-9_.:-]", "-", given or socket.gethostname() or "voicewire")[:MAX_NAME_CHARS]
    return f"{name}-{secrets.token_hex(3)}"
