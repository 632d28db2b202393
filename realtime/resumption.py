"""Sessions that survive their connection: tokens, and the table of connections whose session can be claimed."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

from engine.api import SpeechError
from realtime.auth import Principal
from realtime.errors import RequestRefused
from realtime.protocol.dialects.base import Dialect
from sessions.session import Session

if TYPE_CHECKING:
    from realtime.conversation import Conversation

# Close codes of a client that ends its session: normal, and going away.
FINAL_CLOSE_CODES = (1000, 1001)
REFUSED = "no session of this key can be resumed with this id and token; it may have ended"


@dataclass(slots=True, eq=False)
class ResumableState:
    """What outlives a connection."""

    session_id: str
    key_name: str
    # Set while it is in the table.
    owner: SessionOwner = field(init=False)
    # The speech of a wire's client; ``None`` for agents.
    session: Session | None = field(init=False, default=None)
    # Of the token that the client certainly has.
    generation: int = field(init=False, default=0)
    # True from the answer to a resume, which holds the next token, to the client's next event: both tokens are good.
    is_unconfirmed: bool = field(init=False, default=False)

    def confirm(self) -> None:
        """The client has sent an event after the answer: it has the new token, and the former one is void."""
        self.generation += self.is_unconfirmed
        self.is_unconfirmed = False


@dataclass(slots=True, eq=False)
class ResumableConversation(ResumableState):
    session: Session
    conversation: Conversation
    dialect: Dialect
    # Event loop time at which the session was opened.
    opened_s: float


class SessionOwner(Protocol):
    """The connection that a session is attached to, or was attached to last."""

    def release(self) -> None:
        """Give up the session, and close the connection if it is open."""

    def end(self) -> None:
        """End the session of a lost connection, and count that no more."""


S = TypeVar("S", bound=ResumableState)


class ResumptionTable:
    """Finds the owner of a session by id and token. Tokens are good in this process only."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes()
        # By session id.
        self._states: dict[str, ResumableState] = {}
        # Those whose connection is lost, in this order.
        self._suspended: dict[str, ResumableState] = {}

    def token(self, state: ResumableState) -> str:
        """Return the newest token of a session."""
        return self._sign(state, state.generation + state.is_unconfirmed)

    def _sign(self, state: ResumableState, generation: int) -> str:
        signed = f"{state.session_id}.{generation}.{state.key_name}"
        return hmac.digest(self._secret, signed.encode(), hashlib.sha256).hex()

    @contextmanager
    def owned(self, state: ResumableState, owner: SessionOwner) -> Iterator[None]:
        """Make a session claimable while the context is open."""
        state.owner = owner
        self._states[state.session_id] = state
        try:
            yield
        finally:
            if state.owner is owner:
                del self._states[state.session_id]
                self._suspended.pop(state.session_id, None)

    def suspend(self, state: ResumableState) -> None:
        """Mark a session as one whose connection is lost: ``evict`` may end it."""
        self._suspended[state.session_id] = state

    def go_on(self, state: ResumableState) -> None:
        """Mark a session as one whose client is there."""
        self._suspended.pop(state.session_id, None)

    def evict(self, is_wanted: Callable[[ResumableState], bool]) -> bool:
        """End the session that was suspended first of those that are wanted; return False if there is none."""
        state = next(filter(is_wanted, self._suspended.values()), None)
        if state is not None:
            state.owner.end()
        return state is not None

    def evict_speech(self, is_wanted: Callable[[Session], bool]) -> bool:
        """Do the same among sessions with speech."""
        return self.evict(lambda state: state.session is not None and is_wanted(state.session))

    def evict_all(self) -> None:
        while self.evict(lambda _: True):
            pass

    def verify(self, kind: type[S], session_id: str, token: str, caller: Principal) -> S:
        """Return the session that a token is good for. Raises ``RequestRefused``, with one message for all causes."""
        state = self._states.get(session_id)
        if not isinstance(state, kind) or state.key_name != caller.name:
            raise resume_refused()
        if state.session is not None and state.session.detached.is_set():
            raise resume_refused()
        tokens = (self.token(state), self._sign(state, state.generation))
        if not any(hmac.compare_digest(known.encode(), token.encode()) for known in tokens):
            raise resume_refused()
        return state

    def take(self, state: ResumableState, token: str) -> None:
        """Take a session from its owner. A token that was not sent before confirms that the client has it."""
        if token == self.token(state):
            state.confirm()
        self.go_on(state)
        state.owner.release()
        state.is_unconfirmed = True


def resume_refused(reason: str = REFUSED) -> SpeechError:
    return RequestRefused("resume_refused", reason)
