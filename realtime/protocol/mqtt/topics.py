"""Topics on a broker. ``{client}`` and ``{sid}`` are levels of their own, so that a broker's ACL can bind
clients to theirs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from realtime.errors import RemoteProtocolError

WILL_LEVEL = "gone"
# Names that clients may choose.
LEVEL = re.compile(r"\A[A-Za-z0-9_.:-]{1,64}\Z")


@dataclass(frozen=True, slots=True)
class SessionTopics:
    """Direct ones, to and from the one server that took the session."""

    inbox: str
    audio: str
    events: str


@dataclass(frozen=True, slots=True)
class Topics:
    root: str
    group: str

    @property
    def open(self) -> str:
        return f"{self.root}/open"

    @property
    def say(self) -> str:
        return f"{self.root}/say"

    def shared(self, topic: str) -> str:
        """The filter by which servers of the group take turns."""
        return f"$share/{self.group}/{topic}"

    @property
    def all_wills(self) -> str:
        """The filter for ``gone`` of every client."""
        return f"{self.root}/c/+/gone"

    def will(self, client: str) -> str:
        """Whatever comes here ends all that the client has open: the place for its will."""
        return f"{self.root}/c/{client}/gone"

    def responses(self, client: str, name: str = "rsp") -> str:
        return f"{self.root}/c/{client}/{name}"

    def session(self, client: str, sid: str) -> SessionTopics:
        base = f"{self.root}/s/{client}/{sid}"
        return SessionTopics(f"{base}/in", f"{base}/audio", f"{base}/ev")

    def status(self, worker: str) -> str:
        return f"{self.root}/status/{worker}"

    def all_call_commands(self, worker: str) -> str:
        return f"{self.root}/calls/{worker}/+/in"

    def call_events(self, worker: str, call_id: str) -> str:
        return f"{self.root}/calls/{worker}/{call_id}/ev"

    def client_of_will(self, topic: str) -> str:
        return topic.removeprefix(f"{self.root}/c/").removesuffix("/gone")

    def call_of_command(self, worker: str, topic: str) -> str:
        return topic.removeprefix(f"{self.root}/calls/{worker}/").removesuffix("/in")

    def client_of(self, response_topic: str | None) -> str:
        """Topic filter of valid response topics. The server publishes nowhere else: it might be a place where the
        client itself may not, such as another's ``gone``.

        Raises ``RemoteProtocolError``.
        """
        client, slash, name = (response_topic or "").removeprefix(f"{self.root}/c/").partition("/")
        named = slash and LEVEL.match(client) and LEVEL.match(name) and name != WILL_LEVEL
        if not named or response_topic != self.responses(client, name):
            wanted = f"{self.root}/c/CLIENT/NAME"
            raise RemoteProtocolError("invalid_event", f"the response topic must be {wanted}", "response_topic")
        return client
