"""Sessions that survive their connection: tokens, and the table of connections whose session can be claimed."""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from engine.api import SpeechError
from realtime.auth import Principal
from realtime.errors import RequestRefused
from realtime.protocol.dialects.base import Dialect

if TYPE_CHECKING:
    from realtime.conversation import Conversation
    from sessions.session import Session

# Close codes of a client that ends its session: normal, and going away.
FINAL_CLOSE_CODES = (1000, 1001)
REFUSED = "no session of this key can be resumed with this id and token; it may have ended"
PREFIX = "vwr1"
# A longer token is none of this server's.
MAX_TOKEN_CHARS = 512
# By default a token outlives any session.
DEFAULT_TTL_S = 2 * 86_400.0

log = logging.getLogger("voicewire.connection")


class RefusalCause(StrEnum):
    """Why a resume is refused. Logged only: all clients get the same answer."""

    MALFORMED = "malformed"
    FORGED = "forged"
    EXPIRED = "expired"
    # A token of another key or of another session.
    FOREIGN = "foreign"
    # A token that a newer one has replaced.
    REPLAYED = "replayed"
    # The session has ended, or the gateway that had it.
    GONE = "gone"


class TokenClaims(NamedTuple):
    """Claims of a resume token, in the order in which it shows them."""

    session_id: str
    # Rises with each resume.
    generation: int
    # Number of the gateway that has the session.
    gateway: int
    # Unix time.
    expires_s: int
    # Digest of the name of the API key.
    key_digest: str

    def sign(self, secret: bytes) -> str:
        text = ".".join([PREFIX, *map(str, self)])
        return f"{text}.{_signature(text, secret)}"

    @classmethod
    def parse(cls, token: str, secret: bytes) -> TokenClaims:
        """Return the claims of a genuine token. Raises ``RequestRefused``."""
        text, _, signature = token.rpartition(".")
        match text.split(".") if len(token) <= MAX_TOKEN_CHARS else ():
            case [prefix, session_id, generation, gateway, expires_s, key_digest] if prefix == PREFIX:
                pass
            case _:
                raise resume_refused(cause=RefusalCause.MALFORMED)
        if not hmac.compare_digest(_signature(text, secret).encode(), signature.encode()):
            raise resume_refused(cause=RefusalCause.FORGED)
        return cls(session_id, int(generation), int(gateway), int(expires_s), key_digest)


def _signature(text: str, secret: bytes) -> str:
    return hmac.digest(secret, text.encode(), hashlib.sha256).hex()


def digest_key_name(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:16]


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
    """Finds the owner of a session by id and token. Tokens are good at every gateway with the same secret."""

    def __init__(self, secret: bytes | None = None, gateway: int = 0, ttl_s: float = DEFAULT_TTL_S) -> None:
        """Without a secret, tokens are good for this object alone."""
        self._secret = secret or secrets.token_bytes()
        self.gateway = gateway
        self._ttl_s = ttl_s
        # By session id.
        self._states: dict[str, ResumableState] = {}
        # Those whose connection is lost, in this order.
        self._suspended: dict[str, ResumableState] = {}

    def token(self, state: ResumableState) -> str:
        """Return the newest token of a session."""
        expires_s = int(time.time() + self._ttl_s)
        generation = state.generation + state.is_unconfirmed
        key_digest = digest_key_name(state.key_name)
        return TokenClaims(state.session_id, generation, self.gateway, expires_s, key_digest).sign(self._secret)

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

    def check(self, session_id: str, token: str, caller: Principal) -> TokenClaims:
        """Return the claims of a token that this server has issued for the session of a caller.

        Raises ``RequestRefused``, with one message for all causes."""
        claims = TokenClaims.parse(token, self._secret)
        if claims.expires_s <= time.time():
            raise resume_refused(cause=RefusalCause.EXPIRED)
        if claims.session_id != session_id or claims.key_digest != digest_key_name(caller.name):
            raise resume_refused(cause=RefusalCause.FOREIGN)
        return claims

    def find(self, kind: type[S], claims: TokenClaims) -> S:
        """Return the session of this gateway that the claims name. Raises ``RequestRefused``, as ``check``."""
        state = self._states.get(claims.session_id)
        if claims.gateway != self.gateway or not isinstance(state, kind):
            raise resume_refused(cause=RefusalCause.GONE)
        if state.session is not None and state.session.detached.is_set():
            raise resume_refused(cause=RefusalCause.GONE)
        if not state.generation <= claims.generation <= state.generation + state.is_unconfirmed:
            raise resume_refused(cause=RefusalCause.REPLAYED)
        return state

    def take(self, state: ResumableState, claims: TokenClaims) -> None:
        """Take a session from its owner. A token that was not sent before confirms that the client has it."""
        if claims.generation > state.generation:
            state.confirm()
        self.go_on(state)
        state.owner.release()
        state.is_unconfirmed = True


def resume_refused(reason: str = REFUSED, cause: RefusalCause | None = None) -> SpeechError:
    if cause is not None:
        log.info("resume refused", extra={"code": cause})
    return RequestRefused("resume_refused", reason)
