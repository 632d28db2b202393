"""Publishes a server's state on its retained topic."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from realtime.mqtt.connection import MqttConnection, Publication
from realtime.protocol.mqtt.messages import JSON, MqttServerStatus, serialize
from realtime.protocol.mqtt.topics import Topics

# Expiry of a published status; a running server publishes again before.
EXPIRY_S = 300
POLL_INTERVAL_S = 0.25
PUBLISH_INTERVAL_S = 2.0


class StatusPublisher:
    def __init__(self, line: MqttConnection, topics: Topics, worker: str, read: Callable[[], MqttServerStatus]) -> None:
        self._line, self._topics, self._worker = line, topics, worker
        self._read = read
        self._published: MqttServerStatus | None = None
        self._published_s = 0.0

    async def run(self, on_draining: Callable[[], Awaitable[None]]) -> None:
        """Publish changes at intervals, and draining at once."""
        has_drained = False
        while True:
            status = self._read()
            drains = status.state == "draining" and not has_drained
            if drains:
                has_drained = True
                await on_draining()
            await self._publish(status, now=drains)
            await asyncio.sleep(POLL_INTERVAL_S)

    async def clear(self) -> None:
        await self._line.publish(Publication(topic=self._topics.status(self._worker), qos=1, retain=True))

    async def _publish(self, status: MqttServerStatus, now: bool = False) -> None:
        time_s = asyncio.get_running_loop().time()
        since_s = time_s - self._published_s
        due = self._published is None or now or since_s >= EXPIRY_S / 2
        if due or (status != self._published and since_s >= PUBLISH_INTERVAL_S):
            await self._line.publish_nowait(publication(self._topics, self._worker, status))
            self._published, self._published_s = status, time_s


def publication(topics: Topics, worker: str, status: MqttServerStatus) -> Publication:
    return Publication(
        topic=topics.status(worker),
        payload=serialize(status),
        qos=1,
        retain=True,
        content_type=JSON,
        expiry_s=EXPIRY_S,
    )


def offline(topics: Topics, worker: str) -> Publication:
    """Build the will of a server."""
    return publication(topics, worker, MqttServerStatus(state="offline"))
