"""Sessions at a broker: the connection of each, from its inbox to its topics, and the table of all that are open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from realtime.errors import CloseCode
from realtime.mqtt.connection import BrokerDisconnected, MqttConnection, Publication
from realtime.protocol.mqtt.messages import MqttClosed, MqttLost, properties, serialize, unpack
from realtime.protocol.mqtt.topics import SessionTopics
from realtime.resumption import ResumableState
from realtime.transports.transport import QueueTransport
from sessions.errors import DuplicateResponse, LimitExceeded

OVERFLOW_CODE = "limit_exceeded"
# Events that could not be delivered until then are of no use.
EXPIRY_S = 60


class MqttSessionTransport(QueueTransport):
    """Transport of a session at a broker. Once cut, it sends not even a close."""

    # No other connection goes on with its session.
    close_code = CloseCode.GOING_AWAY

    def __init__(
        self,
        line: MqttConnection,
        topics: SessionTopics,
        content_type: str,
        max_waiting: int,
        max_waiting_bytes: int,
        can_resume: bool = False,
    ) -> None:
        super().__init__()
        self.topics = topics
        self.can_resume = can_resume
        self._line = line
        self._content_type = content_type
        self._max_waiting, self._max_waiting_bytes = max_waiting, max_waiting_bytes
        self._waiting_bytes = 0
        # The reason that is still to be told.
        self.farewell: str | None = None

    def on_client_gone(self) -> None:
        """End the session, or suspend it if it can be resumed."""
        if self.can_resume:
            self.on_message(serialize(MqttLost()).encode())
        else:
            self.abort()

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

    async def receive(self) -> str | bytes | None:
        payload = await super().receive()
        self._waiting_bytes -= len(payload or b"")
        return payload

    async def write(self, message: str | bytes) -> None:
        try:
            await self._line.publish_nowait(self._publication(message), self.abort)
        except BrokerDisconnected:
            self.abort()

    async def close(self, code: int, reason: str = "") -> None:
        if not self._closed:
            await self.write(serialize(MqttClosed(reason=reason or "close")))
            self.abort()

    def _publication(self, message: str | bytes) -> Publication:
        if isinstance(message, bytes):
            head, sound = unpack(message)
            user = tuple(properties(head))
            return Publication(topic=self.topics.audio, payload=sound, content_type=self._content_type, user=user)
        return Publication.from_json(self.topics.events, message, expiry_s=EXPIRY_S)


class MqttReplyTransport(MqttSessionTransport):
    """The line of a one-shot text: everything goes to the response topic."""

    def __init__(self, line: MqttConnection, topic: str, correlation: bytes | None, content_type: str) -> None:
        super().__init__(line, SessionTopics("", topic, topic), content_type, 0, 0)
        self._correlation = correlation

    async def close(self, code: int, reason: str = "") -> None:
        self.abort()

    def _publication(self, message: str | bytes) -> Publication:
        publication = super()._publication(message)
        user = publication.user if isinstance(message, bytes) else (("last", "1"),)
        return replace(publication, correlation=self._correlation, user=user, expiry_s=None)


@dataclass(slots=True, eq=False)
class SessionEntry:
    client: str
    # The topic where its end is told; a text that was given whole has none.
    events: str | None
    link: MqttSessionTransport | None = None
    # Of a session that can be resumed.
    state: ResumableState | None = None
    # True once its place is given to another session.
    is_evicted: bool = False


@dataclass(slots=True, eq=False)
class MqttSessionTable:
    max_sessions: int
    max_sessions_per_client: int
    retry_after_ms: int
    # Ends the suspended session that is wanted: ``ResumptionTable.evict``.
    evict: Callable[[Callable[[ResumableState], bool]], bool]
    # Topics of events of those that ended with the connection.
    lost_event_topics: list[str] = field(default_factory=list)
    # Sessions by inbox, or by another key of the session.
    _places: dict[str, SessionEntry] = field(default_factory=dict)
    # Places in use, by client.
    _num_of: Counter[str] = field(default_factory=Counter)

    @property
    def num_sessions(self) -> int:
        return self._num_of.total()

    @contextmanager
    def reserve(self, client: str, inbox: str, events: str | None = None) -> Iterator[None]:
        """Hold a place, that of a suspended session if all are taken.

        Raises ``LimitExceeded``, or ``DuplicateResponse`` when the inbox is a session's already.
        """
        if inbox in self._places:
            raise DuplicateResponse("a session with this sid is open already", "sid")
        if self._num_of[client] >= self.max_sessions_per_client:
            self._make_room("max_sessions_per_client", self.max_sessions_per_client, client)
        if self.num_sessions >= self.max_sessions:
            self._make_room("max_sessions", self.max_sessions)
        place = self._places[inbox] = SessionEntry(client, events)
        self._num_of[client] += 1
        try:
            yield
        finally:
            del self._places[inbox]
            if not place.is_evicted:
                self._release(place)

    def _release(self, place: SessionEntry) -> None:
        self._num_of[place.client] -= 1
        if not self._num_of[place.client]:
            del self._num_of[place.client]

    def register(self, inbox: str, link: MqttSessionTransport, state: ResumableState | None = None) -> None:
        """Route messages of an inbox to a transport."""
        self._places[inbox].link, self._places[inbox].state = link, state

    def find_transport(self, inbox: str) -> MqttSessionTransport | None:
        place = self._places.get(inbox)
        return None if place is None else place.link

    def disconnect_client(self, client: str) -> None:
        """End the sessions of a client that has disconnected."""
        for place in list(self._places.values()):
            if place.client == client and place.link is not None:
                place.link.on_client_gone()

    def disconnect_all(self) -> None:
        """The connection is gone."""
        for place in list(self._places.values()):
            if place.link is not None:
                place.link.abort()
            if place.events is not None:
                self.lost_event_topics.append(place.events)

    def _make_room(self, name: str, limit: int, client: str | None = None) -> None:
        """End the session that was suspended first, of a client if one is given. Raises ``LimitExceeded``."""
        places = [place for place in self._places.values() if client in (None, place.client) and not place.is_evicted]
        found: list[SessionEntry] = []

        def is_wanted(state: ResumableState) -> bool:
            found.extend(place for place in places if place.state is state)
            return bool(found)

        if not self.evict(is_wanted):
            raise LimitExceeded(f"mqtt.{name} is {limit}", retry_after_ms=self.retry_after_ms)
        found[0].is_evicted = True
        self._release(found[0])
