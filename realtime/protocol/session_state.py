"""The object that follows one session through the tables of ``transitions.py``."""

from __future__ import annotations

from collections import OrderedDict

from realtime.errors import LocalProtocolError, RemoteProtocolError
from realtime.protocol.events import ClientEvent, ResponseCreate, TextEnd
from realtime.protocol.transitions import (
    RESPONSE_TRANSITIONS,
    SERVER_TRANSITIONS,
    SESSION_TRANSITIONS,
    EventRefusal,
    IgnoredEvent,
    ResponseState,
    SessionState,
)


class SessionStateMachine:
    """Follows one session through the tables.

    For each client event call ``receive``, and act on the event only if it returns true. After creating a response
    failed call ``refused``; before sending ``response.done`` call ``done``. Remembers the last ``max_remembered``
    responses that ended or were refused.
    """

    def __init__(self, max_remembered: int) -> None:
        self.state = SessionState.ACTIVE
        self._max_remembered = max_remembered
        self._live: dict[str, ResponseState] = {}
        self._past: OrderedDict[str, ResponseState] = OrderedDict()

    @property
    def num_live(self) -> int:
        """Responses whose ``response.done`` is still to come."""
        return len(self._live)

    @property
    def live(self) -> tuple[str, ...]:
        return tuple(self._live)

    def response_state(self, response_id: str) -> ResponseState:
        return self._live.get(response_id) or self._past.get(response_id) or ResponseState.UNKNOWN

    def apply_client_event(self, event: ClientEvent) -> bool:
        """Whether the event is to be acted on. Raises ``RemoteProtocolError`` when it is not legal now.

        A ``response.create`` has its id by now.
        """
        response_id = getattr(event, "response_id", None)
        self._transition_session(event)
        return response_id is None or self._transition_response(event, response_id)

    def on_refused(self, response_id: str) -> None:
        """The response that was just created could not be."""
        self._leave(response_id, "error")

    def on_response_done(self, response_id: str) -> None:
        """``response.done`` is being sent. Raises ``LocalProtocolError`` when it was sent before."""
        self._leave(response_id, "response.done")

    def _transition_session(self, event: ClientEvent) -> None:
        move = SESSION_TRANSITIONS[self.state].get(type(event), self.state)
        if isinstance(move, EventRefusal):
            raise RemoteProtocolError(move.code, move.message)
        self.state = move

    def _transition_response(self, event: ClientEvent, response_id: str) -> bool:
        state = self.response_state(response_id)
        move = RESPONSE_TRANSITIONS[state][type(event)]
        if isinstance(move, EventRefusal):
            raise RemoteProtocolError(move.code, move.message, "response_id")
        if isinstance(move, IgnoredEvent):
            return False
        if move is not state:
            self._past.pop(response_id, None)
            self._live[response_id] = move
        if isinstance(event, ResponseCreate) and event.end:
            self._transition_response(TextEnd(response_id=response_id), response_id)
        return True

    def _leave(self, response_id: str, by: str) -> None:
        state = self.response_state(response_id)
        after = SERVER_TRANSITIONS[by].get(state)
        if after is None:
            raise LocalProtocolError(f"{by} for a response that is {state}")
        del self._live[response_id]
        self._past[response_id] = after
        if len(self._past) > self._max_remembered:
            self._past.popitem(last=False)
