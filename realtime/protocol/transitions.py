"""Which event is legal when, as data: one table for sessions, one for responses; ``SessionStateMachine`` follows them.

Two rules for changes of this file. Everything that decides legality is in the two tables. The state diagrams in
docs/reference/native-protocol.md are made from them (``diagram``), so a change here changes that page.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum

from realtime.errors import LocalProtocolError, RemoteProtocolError
from realtime.protocol.events import (
    ClientEvent,
    PlaybackReport,
    ResponseCancel,
    ResponseCreate,
    SessionClose,
    SessionResume,
    SessionUpdate,
    TextAppend,
    TextEnd,
    TextFlush,
)

# Ended or refused responses of a session that a client may still name.
MAX_REMEMBERED_RESPONSES = 4


class SessionState(StrEnum):
    # No event was received.
    NEW = "new"
    ACTIVE = "active"
    # Speaks what is there and takes no new response.
    CLOSING = "closing"


class ResponseState(StrEnum):
    # Never created, or ended so long ago that it is forgotten.
    UNKNOWN = "unknown"
    # ``response.create`` was answered by an error; text that was already on its way is passed over.
    REFUSED = "refused"
    # Takes text, and speaks.
    OPEN = "open"
    # Its text has ended; audio follows.
    ENDED = "ended"
    # Silent; ``response.done`` comes next.
    CANCELLING = "cancelling"
    # ``response.done`` was sent in the middle of its text; what was already on its way is passed over.
    FAILED = "failed"
    # ``response.done`` was sent; audio may still be playing at the listener.
    DONE = "done"


@dataclass(frozen=True, slots=True)
class EventRefusal:
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class IgnoredEvent:
    """Neither acted on nor answered."""


Transition = ResponseState | EventRefusal | IgnoredEvent
S, R = SessionState, ResponseState
IGNORED = IgnoredEvent()
NOT_FIRST = EventRefusal("resume_refused", "session.resume is the first event of a connection")
CLOSING = EventRefusal("session_closed", "the session is closing")
NO_RESPONSE = EventRefusal("unknown_response", "there is no response with this id")
ID_IN_USE = EventRefusal("duplicate_response", "this response id is in use, or was a moment ago")
NO_MORE_TEXT = EventRefusal("text_closed", "the text of this response has ended")
RESPONSE_ENDED = EventRefusal("response_done", "this response has ended")

SESSION_TRANSITIONS: dict[SessionState, dict[type[ClientEvent], SessionState | EventRefusal]] = {
    S.NEW: {SessionResume: S.NEW, SessionUpdate: S.ACTIVE, SessionClose: S.CLOSING, ResponseCreate: S.ACTIVE},
    S.ACTIVE: {
        SessionResume: NOT_FIRST,
        SessionUpdate: S.ACTIVE,
        SessionClose: S.CLOSING,
        ResponseCreate: S.ACTIVE,
    },
    S.CLOSING: {SessionResume: NOT_FIRST, SessionUpdate: CLOSING, SessionClose: CLOSING, ResponseCreate: CLOSING},
}

# A ``response.create`` with ``end`` counts as a ``response.create`` and a ``text.end``.
RESPONSE_TRANSITIONS: dict[ResponseState, dict[type[ClientEvent], Transition]] = {
    R.UNKNOWN: {
        ResponseCreate: R.OPEN,
        TextAppend: NO_RESPONSE,
        TextFlush: NO_RESPONSE,
        TextEnd: NO_RESPONSE,
        ResponseCancel: NO_RESPONSE,
        PlaybackReport: NO_RESPONSE,
    },
    R.REFUSED: {
        ResponseCreate: R.OPEN,
        TextAppend: IGNORED,
        TextFlush: IGNORED,
        TextEnd: IGNORED,
        ResponseCancel: IGNORED,
        PlaybackReport: IGNORED,
    },
    R.OPEN: {
        ResponseCreate: ID_IN_USE,
        TextAppend: R.OPEN,
        TextFlush: R.OPEN,
        TextEnd: R.ENDED,
        ResponseCancel: R.CANCELLING,
        PlaybackReport: R.OPEN,
    },
    R.ENDED: {
        ResponseCreate: ID_IN_USE,
        TextAppend: NO_MORE_TEXT,
        TextFlush: NO_MORE_TEXT,
        TextEnd: NO_MORE_TEXT,
        ResponseCancel: R.CANCELLING,
        PlaybackReport: R.ENDED,
    },
    R.CANCELLING: {
        ResponseCreate: ID_IN_USE,
        TextAppend: RESPONSE_ENDED,
        TextFlush: RESPONSE_ENDED,
        TextEnd: RESPONSE_ENDED,
        ResponseCancel: IGNORED,
        PlaybackReport: IGNORED,
    },
    R.FAILED: {
        ResponseCreate: ID_IN_USE,
        TextAppend: IGNORED,
        TextFlush: IGNORED,
        TextEnd: IGNORED,
        ResponseCancel: R.FAILED,
        PlaybackReport: R.FAILED,
    },
    R.DONE: {
        ResponseCreate: ID_IN_USE,
        TextAppend: RESPONSE_ENDED,
        TextFlush: RESPONSE_ENDED,
        TextEnd: RESPONSE_ENDED,
        ResponseCancel: R.DONE,
        PlaybackReport: R.DONE,
    },
}


# ``error`` stands for the answer to ``response.create`` alone.
SERVER_TRANSITIONS: dict[str, dict[ResponseState, ResponseState]] = {
    "error": {R.OPEN: R.REFUSED, R.ENDED: R.REFUSED},
    "response.done": {R.OPEN: R.FAILED, R.ENDED: R.DONE, R.CANCELLING: R.DONE},
}


class SessionStateMachine:
    """Follows one session through the tables.

    For each client event call ``receive``, and act on the event only if it returns true. After creating a response
    failed call ``refused``; before sending ``response.done`` call ``done``. Remembers the last ``max_remembered``
    responses that ended or were refused.
    """

    def __init__(self, max_remembered: int = MAX_REMEMBERED_RESPONSES) -> None:
        self.state = SessionState.NEW
        self._max_remembered = max_remembered
        self._live: dict[str, ResponseState] = {}
        self._past: OrderedDict[str, ResponseState] = OrderedDict()

    @property
    def live(self) -> tuple[str, ...]:
        return tuple(self._live)

    def response_state(self, response_id: str) -> ResponseState:
        return self._live.get(response_id) or self._past.get(response_id) or ResponseState.UNKNOWN

    def apply_client_event(self, event: ClientEvent) -> bool:
        """Return whether to carry out the event; raises ``RemoteProtocolError`` if it is not legal now.

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

    def reopen(self, response_id: str) -> None:
        """The client has not received ``response.done`` of this response: it will be sent again."""
        state = self._past.pop(response_id)
        self._live[response_id] = ResponseState.OPEN if state is ResponseState.FAILED else ResponseState.ENDED

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
