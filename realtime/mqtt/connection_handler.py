"""A broker connection from its subscriptions to its end, and the sessions that clients open on it."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any

from engine.api import SpeechError
from realtime.auth import Principal
from realtime.calls.call_registry import CallRegistry
from realtime.dialect_connection import DialectConnection
from realtime.errors import RemoteProtocolError, RequestRefused
from realtime.mqtt.broker_connector import HARD_LIMIT
from realtime.mqtt.connection import BrokerDisconnected, IncomingMessage, MqttConnection, Publication
from realtime.mqtt.publishers import MqttCallBridge, StatusPublisher
from realtime.mqtt.session_transport import MqttReplyTransport, MqttSessionTable, MqttSessionTransport
from realtime.protocol.dialects.base import DialectRoute
from realtime.protocol.mqtt import messages
from realtime.protocol.mqtt.dialect import MqttOneShotDialect, MqttSessionDialect, failed
from realtime.protocol.mqtt.topics import Topics
from realtime.tracing import use_parent
from realtime.transports.transport import check_size
from sessions.audio.provenance import SOURCE_TYPE

if TYPE_CHECKING:
    from realtime.server import SpeechServer

log = logging.getLogger("voicewire.mqtt")

SESSION_ROUTE = DialectRoute("mqtt", MqttSessionDialect, serial=True)
ONE_SHOT_ROUTE = DialectRoute("mqtt/say", MqttOneShotDialect)
# Messages that are being refused at once; more are dropped without a word.
MAX_PENDING_REFUSALS = 256


class MqttConnectionHandler:
    """``attend`` raises ``BrokerDisconnected`` or ``RequestRefused``; by then every session of this connection has
    ended.
    """

    def __init__(
        self,
        server: SpeechServer,
        switchboard: CallRegistry,
        owner: Principal,
        topics: Topics,
        worker: str,
        line: MqttConnection,
    ) -> None:
        mqtt = server.config.mqtt
        self._server, self._owner, self._settings = server, owner, mqtt
        self._topics, self._worker, self._line = topics, worker, line
        retry_after_ms = server.config.limits.retry_after_ms
        self.sessions = MqttSessionTable(
            mqtt.max_sessions, mqtt.max_sessions_per_client, retry_after_ms, server.resumption.evict
        )
        self._status = StatusPublisher(line, topics, worker, self._read_status)
        self._calls = MqttCallBridge(server, switchboard, owner, line, topics, worker) if mqtt.calls_enabled else None
        self._tasks, self._sessions = asyncio.TaskGroup(), asyncio.TaskGroup()
        self._num_working = 0
        # True once all subscriptions are acknowledged.
        self.ready = False

    async def run(self) -> None:
        lost: BaseException
        async with self._sessions:  # which are not cancelled, but cut: then they end by themselves, and at once
            try:
                async with self._tasks:
                    await self._work()
            except ExceptionGroup as faults:
                lost = _broker_lost(faults)
            except asyncio.CancelledError as stopped:
                lost = stopped
                with suppress(BrokerDisconnected, RequestRefused):
                    await self._status.clear()
            finally:
                self.sessions.disconnect_all()
        raise lost

    async def _work(self) -> None:
        self._tasks.create_task(self._line.wait_disconnected(), name="voicewire mqtt watch")
        await self._subscribe()
        self.ready = True
        self._tasks.create_task(self._status.run(self._unsubscribe_on_drain), name="voicewire mqtt status")
        if self._calls is not None:
            self._tasks.create_task(self._calls.run(), name="voicewire mqtt calls")
        await self._line.set_handler(self._on_message)

    async def _subscribe(self) -> None:
        await self._line.subscribe(self._topics.all_wills)
        if self._calls is not None:
            await self._line.subscribe(self._calls.filter)
        for topic in (self._topics.open, self._topics.say):
            await self._line.subscribe(self._topics.shared(topic))

    async def _unsubscribe_on_drain(self) -> None:
        """Let others of the group take what is new."""
        for topic in (self._topics.open, self._topics.say):
            await self._line.unsubscribe(self._topics.shared(topic))

    def _read_status(self) -> messages.MqttServerStatus:
        return messages.MqttServerStatus(
            state="draining" if self._server.draining else "online",
            sessions=self.sessions.num_sessions,
            max_sessions=self.sessions.max_sessions,
        )

    def _on_message(self, arrival: IncomingMessage) -> None:
        topics, topic = self._topics, arrival.topic
        if arrival.retained:
            return  # a retained message
        if (link := self.sessions.find_transport(topic)) is not None:
            link.on_message(arrival.payload)
        elif topic == topics.open:
            self._begin(self._open, arrival)
        elif topic == topics.say:
            self._begin(self._run_one_shot, arrival)
        elif topic.endswith("/gone"):
            self.sessions.disconnect_client(topics.client_of_will(topic))
        elif self._calls is not None and topic.startswith(f"{topics.root}/calls/"):
            self._calls.on_message(topic, arrival.payload)

    def _begin(
        self, work: Callable[[str, IncomingMessage], Coroutine[Any, Any, None]], arrival: IncomingMessage
    ) -> None:
        try:
            client = self._topics.client_of(arrival.response_topic)
        except RemoteProtocolError as error:
            self._log_error(error)
            return
        if self._num_working >= self.sessions.max_sessions + MAX_PENDING_REFUSALS:
            self._server.metrics.refused("overloaded")
            return
        self._sessions.create_task(self._guarded(work(client, arrival)), name="voicewire mqtt session")

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        self._num_working += 1
        try:
            await work
        except BrokerDisconnected:
            pass  # the reader reports it
        except RequestRefused as error:  # there is no client to report to
            self._log_error(error)
        except Exception:  # an internal error in one session must not end others
            log.exception("MQTT session failed")
        finally:
            self._num_working -= 1

    async def _open(self, client: str, arrival: IncomingMessage) -> None:
        async with AsyncExitStack() as held:
            try:
                connection, link, answer = await self._prepare_session(held, client, arrival)
            except SpeechError as error:
                self._log_error(error)
                await self._answer(arrival, messages.serialize(messages.MqttRefusal(error=error.info)))
                return
            await self._answer(arrival, messages.serialize(answer))
            await connection.run(link)
            if link.farewell is not None:
                await self._reject_unknown_session(link)

    async def _prepare_session(
        self, held: AsyncExitStack, client: str, arrival: IncomingMessage
    ) -> tuple[DialectConnection, MqttSessionTransport, messages.MqttOpened]:
        """Take a place, and be there to hear. Raises what refuses a session."""
        check_size(arrival.payload, self._server.config.limits.max_message_bytes)
        wanted = messages.parse_open(arrival.payload)
        sid = wanted.sid or secrets.token_hex(8)
        topics = self._topics.session(client, sid)
        held.enter_context(self.sessions.reserve(client, topics.inbox, topics.events))
        can_resume = wanted.resume and self._server.config.limits.resume_grace_s > 0
        dialect = MqttSessionDialect(sid, wanted.to_options(self._settings.lead_ms), can_resume)
        connection = self._run_session(held, SESSION_ROUTE, dialect, arrival)
        content_type = messages.CONTENT_TYPES[wanted.format.encoding]
        max_bytes = HARD_LIMIT * self._server.config.limits.max_message_bytes
        max_waiting = self._settings.max_queued_per_session
        link = MqttSessionTransport(self._line, topics, content_type, max_waiting, max_bytes, can_resume)
        self.sessions.register(topics.inbox, link, connection.resumable)
        await self._line.subscribe(topics.inbox)
        held.push_async_callback(self._unsubscribe, topics.inbox)
        answer = messages.MqttOpened(
            sid=sid,
            worker=self._worker,
            inbox=topics.inbox,
            audio=topics.audio,
            ev=topics.events,
            digital_source_type=SOURCE_TYPE,
        )
        return connection, link, answer

    async def _run_one_shot(self, client: str, arrival: IncomingMessage) -> None:
        async with AsyncExitStack() as held:
            try:
                connection, link = self._prepare_text(held, client, arrival)
            except SpeechError as error:
                self._log_error(error)
                await self._answer(arrival, messages.serialize(failed(error.info)), last=True)
                return
            await connection.run(link)

    def _prepare_text(
        self, held: AsyncExitStack, client: str, arrival: IncomingMessage
    ) -> tuple[DialectConnection, MqttReplyTransport]:
        check_size(arrival.payload, self._server.config.limits.max_message_bytes)
        wanted = messages.parse_say(arrival.payload)
        limit = self._server.config.limits.max_speech_request_chars
        if len(wanted.text) > limit:
            found = f"text has {len(wanted.text)} characters, max_speech_request_chars is {limit}"
            raise RequestRefused("request_too_long", found, "text")
        seat = f"say/{secrets.token_hex(8)}"
        held.enter_context(self.sessions.reserve(client, seat))
        dialect = MqttOneShotDialect(seat, wanted.to_options(0), wanted.text)
        connection = self._run_session(held, ONE_SHOT_ROUTE, dialect, arrival)
        content_type = messages.CONTENT_TYPES[wanted.format.encoding]
        link = MqttReplyTransport(self._line, arrival.response_topic or "", arrival.correlation, content_type)
        self.sessions.register(seat, link)
        return connection, link

    def _run_session(
        self,
        held: AsyncExitStack,
        wire: DialectRoute,
        dialect: MqttSessionDialect | MqttOneShotDialect,
        arrival: IncomingMessage,
    ) -> DialectConnection:
        self._server.check_connection_limits(self._owner)
        self._server.check_response_limits(self._owner)
        connection = DialectConnection(self._server, wire, dialect)
        held.push_async_callback(connection.aclose)
        with use_parent(dict(arrival.user)):
            connection.open(self._owner)
        return connection

    async def _answer(self, arrival: IncomingMessage, payload: str, last: bool = False) -> None:
        topic, user = arrival.response_topic or "", (("last", "1"),) if last else ()
        await self._line.publish(Publication.from_json(topic, payload, correlation=arrival.correlation, user=user))

    async def _reject_unknown_session(self, link: MqttSessionTransport) -> None:
        closed = messages.serialize(messages.MqttClosed(reason=link.farewell or ""))
        await self._line.publish(Publication.from_json(link.topics.events, closed))

    async def _unsubscribe(self, topic: str) -> None:
        with suppress(BrokerDisconnected):
            await self._line.unsubscribe(topic)

    def _log_error(self, error: SpeechError) -> None:
        code = error.code
        self._server.metrics.refused(code)
        log.info("client message rejected", extra={"code": code})


def _broker_lost(faults: BaseExceptionGroup[BaseException]) -> BrokerDisconnected:
    lost, others = faults.split((BrokerDisconnected, RequestRefused))
    if others is not None:
        log.error("MQTT connection failed", exc_info=others)
    return BrokerDisconnected(str(_first(lost or faults)))


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    found = group.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found
