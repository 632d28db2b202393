"""A session's line: messages come from its inbox on the broker, and go to its topics there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from realtime.mqtt.connection import BrokerDisconnected, MqttConnection, Publication
from realtime.protocol.mqtt import audio
from realtime.protocol.mqtt.messages import JSON, MqttClosed, serialize
from realtime.protocol.mqtt.topics import SessionTopics

OVERFLOW_CODE = "limit_exceeded"
# Events that could not be delivered until then are of no use.
EXPIRY_S = 60


class MqttSessionTransport:
    """Implements ``MessageTransport``. Once cut, nothing more is said on it, not even that it is closed."""

    def __init__(
        self, line: MqttConnection, topics: SessionTopics, content_type: str, max_waiting: int, max_waiting_bytes: int
    ) -> None:
        self.topics = topics
        self._line = line
        self._content_type = content_type
        self._max_waiting, self._max_waiting_bytes = max_waiting, max_waiting_bytes
        self._waiting: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._waiting_bytes = 0
        self._closed = False
        # The reason that is still to be told.
        self.farewell: str | None = None

    def on_message(self, payload: bytes) -> None:
        """A message for the session. More than may wait end it."""
        if self._closed:
            return
        self._waiting_bytes += len(payload)
        if self._waiting.qsize() >= self._max_waiting or self._waiting_bytes > self._max_waiting_bytes:
            self.farewell = OVERFLOW_CODE
            self.abort()
        else:
            self._waiting.put_nowait(payload)

    def abort(self) -> None:
        """As a socket that breaks. Idempotent."""
        if not self._closed:
            self._closed = True
            self._waiting.put_nowait(None)

    async def receive(self) -> str | bytes | None:
        if self._closed or (payload := await self._waiting.get()) is None:
            return None
        self._waiting_bytes -= len(payload)
        return payload

    async def send(self, message: str | bytes, wanted: Callable[[], bool] | None = None) -> None:
        if self._closed or (wanted is not None and not wanted()):
            return
        try:
            await self._line.publish_nowait(self._publication(message), self.abort)
        except BrokerDisconnected:
            self.abort()

    async def close(self, code: int, reason: str = "") -> None:
        if not self._closed:
            await self.send(serialize(MqttClosed(reason=reason or "close")))
            self.abort()

    def _publication(self, message: str | bytes) -> Publication:
        if isinstance(message, bytes):
            head, sound = audio.unpack(message)
            user = tuple(audio.properties(head))
            return Publication(topic=self.topics.audio, payload=sound, content_type=self._content_type, user=user)
        return Publication(topic=self.topics.events, payload=message, qos=1, content_type=JSON, expiry_s=EXPIRY_S)


class MqttReplyTransport(MqttSessionTransport):
    """Of a text that was given whole: everything goes to the topic that was asked for."""

    def __init__(self, line: MqttConnection, topic: str, correlation: bytes | None, content_type: str) -> None:
        super().__init__(line, SessionTopics("", topic, topic), content_type, 0, 0)
        self._correlation = correlation

    async def close(self, code: int, reason: str = "") -> None:
        self.abort()

    def _publication(self, message: str | bytes) -> Publication:
        said = super()._publication(message)
        user = said.user if isinstance(message, bytes) else (("last", "1"),)
        return Publication(
            topic=said.topic,
            payload=said.payload,
            qos=said.qos,
            content_type=said.content_type,
            correlation=self._correlation,
            user=user,
        )
