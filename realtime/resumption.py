"""Sessions that survive their connection: tokens, and the table of connections whose session can be claimed."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from engine.api import SpeechError
from realtime.auth import Principal
from realtime.errors import RequestRefused
from realtime.protocol.dialects.base import Dialect
from sessions.session import Session

if TYPE_CHECKING:
    from realtime.conversation import Conversation

# Close codes of a client that ends its session: normal, and going away.
FINAL_CLOSE_CODES = (1000, 1001)
REFUSED = "no session of this key can be resumed with this id and token"


@dataclass(slots=True, eq=False)
class ResumableState:
    """What outlives a connection."""

    session: Session
    conversation: Conversation
    dialect: Dialect
    key_name: str
    # Event loop time at which the session was opened.
    opened_s: float
    # Of the token that the client certainly has.
    generation: int = 0
    # True from the answer to a resume, which holds the next token, to the client's next event: both tokens are good.
    is_unconfirmed: bool = False

    def confirm(self) -> None:
        """The client has sent an event after the answer: it has the new token, and the former one is void."""
        self.generation += self.is_unconfirmed
        self.is_unconfirmed = False


class SessionOwner(Protocol):
    """The connection that a session is attached to, or was attached to last."""

    def release(self) -> ResumableState:
        """Give up the session, and close the connection if it is open."""
        ...


class ResumptionTable:
    """Finds the owner of a session by id and token. Tokens are good in this process only."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes()
        self._owners: dict[str, tuple[ResumableState, SessionOwner]] = {}
        # Set when no session can be resumed any more.
        self.closed = asyncio.Event()

    def token(self, state: ResumableState) -> str:
        """Return the newest token of a session."""
        return self._sign(state, state.generation + state.is_unconfirmed)

    def _sign(self, state: ResumableState, generation: int) -> str:
        signed = f"{state.session.session_id}.{generation}.{state.key_name}"
        return hmac.digest(self._secret, signed.encode(), hashlib.sha256).hex()

    @contextmanager
    def owned(self, state: ResumableState, owner: SessionOwner) -> Iterator[None]:
        """Make a session claimable while the context is open."""
        session_id = state.session.session_id
        self._owners[session_id] = (state, owner)
        try:
            yield
        finally:
            if self._owners.get(session_id, (None, None))[1] is owner:
                del self._owners[session_id]

    def claim(self, session_id: str, token: str, caller: Principal) -> ResumableState:
        """Take a session from its owner. Raises ``RequestRefused``, with one message for all causes."""
        state, owner = self._owners.get(session_id, (None, None))
        if state is None or owner is None or state.key_name != caller.name or state.session.detached.is_set():
            raise resume_refused()
        if hmac.compare_digest(self.token(state).encode(), token.encode()):
            state.confirm()
        elif not hmac.compare_digest(self._sign(state, state.generation).encode(), token.encode()):
            raise resume_refused()
        owner.release()
        state.is_unconfirmed = True
        return state


def resume_refused() -> SpeechError:
    return RequestRefused("resume_refused", REFUSED)
