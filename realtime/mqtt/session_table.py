"""Which sessions are open on a connection to the broker, whose they are, and whether there is room for another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from realtime.mqtt.session_transport import MqttSessionTransport
from sessions.errors import DuplicateResponse, LimitExceeded


@dataclass(slots=True, eq=False)
class SessionEntry:
    client: str
    # The topic where its end is told; a text that was given whole has none.
    events: str | None
    link: MqttSessionTransport | None = None


@dataclass(slots=True, eq=False)
class MqttSessionTable:
    max_sessions: int
    max_sessions_per_client: int
    retry_after_ms: int
    # Topics of events of those that ended with the connection.
    lost_event_topics: list[str] = field(default_factory=list)
    # By inbox, or by whatever else stands for a session.
    _places: dict[str, SessionEntry] = field(default_factory=dict)
    _num_of: Counter[str] = field(default_factory=Counter)

    @property
    def num_sessions(self) -> int:
        return len(self._places)

    @contextmanager
    def reserve(self, client: str, inbox: str, events: str | None = None) -> Iterator[None]:
        """Hold a place. Raises ``LimitExceeded``, or ``DuplicateResponse`` when the inbox is a session's already."""
        if inbox in self._places:
            raise DuplicateResponse("a session with this sid is open already", "sid")
        self._check("max_sessions", self.num_sessions, self.max_sessions)
        self._check("max_sessions_per_client", self._num_of[client], self.max_sessions_per_client)
        self._places[inbox] = SessionEntry(client, events)
        self._num_of[client] += 1
        try:
            yield
        finally:
            del self._places[inbox]
            self._num_of[client] -= 1
            if not self._num_of[client]:
                del self._num_of[client]

    def register(self, inbox: str, link: MqttSessionTransport) -> None:
        """From now on messages reach it."""
        self._places[inbox].link = link

    def find_transport(self, inbox: str) -> MqttSessionTransport | None:
        place = self._places.get(inbox)
        return None if place is None else place.link

    def disconnect_client(self, client: str) -> None:
        """It is gone."""
        for place in list(self._places.values()):
            if place.client == client and place.link is not None:
                place.link.abort()

    def disconnect_all(self) -> None:
        """The connection is gone."""
        for place in list(self._places.values()):
            if place.link is not None:
                place.link.abort()
            if place.events is not None:
                self.lost_event_topics.append(place.events)

    def _check(self, name: str, num: int, limit: int) -> None:
        if num >= limit:
            raise LimitExceeded(f"mqtt.{name} is {limit}", retry_after_ms=self.retry_after_ms)
