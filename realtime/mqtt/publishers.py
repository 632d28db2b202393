"""Publish the server's status and the calls of one key on a broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from engine.api import SpeechError
from realtime.auth import Principal
from realtime.calls.call_registry import CallRegistry
from realtime.errors import LocalProtocolError, RequestRefused
from realtime.mqtt.connection import MqttConnection, Publication
from realtime.protocol.call_events import parse_command
from realtime.protocol.mqtt.messages import MqttServerStatus, serialize
from realtime.protocol.mqtt.topics import Topics
from realtime.protocol.telephony import model
from realtime.transports.transport import check_size

if TYPE_CHECKING:
    from realtime.server import SpeechServer

# Expiry of a published status; a running server publishes again before.
STATUS_EXPIRY_S = 300
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
        due = self._published is None or now or since_s >= STATUS_EXPIRY_S / 2
        if due or (status != self._published and since_s >= PUBLISH_INTERVAL_S):
            await self._line.publish_nowait(publication(self._topics, self._worker, status))
            self._published, self._published_s = status, time_s


def publication(topics: Topics, worker: str, status: MqttServerStatus) -> Publication:
    return Publication.from_json(topics.status(worker), serialize(status), retain=True, expiry_s=STATUS_EXPIRY_S)


def offline(topics: Topics, worker: str) -> Publication:
    """Build the will of a server."""
    return publication(topics, worker, MqttServerStatus(state="offline"))


log = logging.getLogger("voicewire.mqtt")

CALL_EXPIRY_S = 60


class MqttCallBridge:
    """Publishes calls on a broker connection. ``run`` raises ``BrokerDisconnected``."""

    def __init__(
        self,
        server: SpeechServer,
        switchboard: CallRegistry,
        owner: Principal,
        line: MqttConnection,
        topics: Topics,
        worker: str,
    ) -> None:
        self._server, self._switchboard, self._owner = server, switchboard, owner
        self._line, self._topics, self._worker = line, topics, worker
        self._max_waiting = server.config.mqtt.max_queued_per_session
        self._commands: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()

    @property
    def filter(self) -> str:
        return self._topics.all_call_commands(self._worker)

    def on_message(self, topic: str, payload: bytes) -> None:
        """A command; more than may wait are dropped."""
        if self._commands.qsize() < self._max_waiting:
            self._commands.put_nowait((self._topics.call_of_command(self._worker, topic), payload))
        else:
            self._server.metrics.refused("limit_exceeded")

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._execute_command(), name="voicewire mqtt commands")
            tasks.create_task(self._publish_events(), name="voicewire mqtt calls")

    async def _publish_events(self) -> None:
        while True:
            with self._switchboard.subscribe(self._owner.name, only_here=True) as agent:
                while (event := await agent.events.get()) is not None:
                    await self._publish(event.call_id or "", event)
            log.warning("call event queue overflowed; events dropped")

    async def _execute_command(self) -> None:
        while True:
            call_id, payload = await self._commands.get()
            try:
                answer = await self._switchboard.call(self._owner.name, call_id).handle_command(self._parse(payload))
            except SpeechError as error:
                answer = model.CommandRefused.from_info(error.info, call_id)
                self._server.metrics.refused(answer.code)
            if answer is not None:
                await self._publish(call_id, answer)

    def _parse(self, payload: bytes) -> model.Command:
        check_size(payload, self._server.config.limits.max_message_bytes)
        return parse_command(payload)

    async def _publish(self, call_id: str, event: model.CallEvent) -> None:
        topic = self._topics.call_events(self._worker, call_id)
        try:
            await self._line.publish(Publication.from_json(topic, serialize(event), expiry_s=CALL_EXPIRY_S))
        except (RequestRefused, LocalProtocolError) as error:  # agents miss the event; the call continues
            log.warning("%s", error)
            self._server.metrics.refused(error.code)
