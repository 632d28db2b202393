"""Errors of connections, and the table that maps each code to HTTP status and close code."""

from __future__ import annotations

import math
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from engine.api import INTERNAL_ERROR, CodedError

if TYPE_CHECKING:
    from engine.api import ErrorInfo


class CloseCode(IntEnum):
    """Codes below 4000 mean what RFC 6455 and its registry say; the others are specific to this server."""

    NORMAL = 1000
    GOING_AWAY = 1001
    UNSUPPORTED_DATA = 1003
    INVALID_DATA = 1007
    POLICY_VIOLATION = 1008
    MESSAGE_TOO_BIG = 1009
    INTERNAL_ERROR = 1011
    SERVICE_RESTART = 1012
    IDLE_TIMEOUT = 4408
    REPLACED = 4409
    SESSION_EXPIRED = 4410


class RequestRefused(CodedError):
    """A request or a handshake that is turned away; ``code`` is one of the table."""


class ProtocolError(CodedError):
    """A broken conversation. The codecs raise it and do not know what a socket does about it."""


class RemoteProtocolError(ProtocolError):
    """The peer sent what it must not; ``code`` says what, ``param`` where."""


class LocalProtocolError(ProtocolError):
    """The server tried to send an invalid message; clients receive an internal error."""

    def __init__(self, message: str) -> None:
        super().__init__(INTERNAL_ERROR.code, message)

    @property
    def info(self) -> ErrorInfo:
        return INTERNAL_ERROR


class FaultOwner(StrEnum):
    CLIENT = "client"
    REQUEST = "request"
    CAPACITY = "capacity"
    SERVER = "server"


class ErrorRule(NamedTuple):
    fault: FaultOwner
    # Status of an HTTP request or handshake that fails with this code.
    http_status: int
    # Close code of a connection that fails with this code; ``None`` leaves it open.
    close: CloseCode | None
    meaning: str


C, Q, K, S = FaultOwner.CLIENT, FaultOwner.REQUEST, FaultOwner.CAPACITY, FaultOwner.SERVER

RULES: dict[str, ErrorRule] = {
    "malformed_json": ErrorRule(C, 400, CloseCode.INVALID_DATA, "a message that is not JSON"),
    "unknown_event": ErrorRule(C, 400, CloseCode.INVALID_DATA, "a `type` that is no client event"),
    "invalid_event": ErrorRule(
        C, 400, CloseCode.INVALID_DATA, "a field that is missing, unknown, of the wrong type or none of its few values"
    ),
    "binary_not_accepted": ErrorRule(C, 400, CloseCode.UNSUPPORTED_DATA, "a binary message from a client"),
    "body_timeout": ErrorRule(C, 408, None, "the body of a request did not arrive in time"),
    "message_too_big": ErrorRule(C, 413, CloseCode.MESSAGE_TOO_BIG, "more than `max_message_bytes`"),
    "too_many_errors": ErrorRule(
        C, 400, CloseCode.POLICY_VIOLATION, "more than `max_errors_per_connection` on one connection"
    ),
    "idle_timeout": ErrorRule(C, 408, CloseCode.IDLE_TIMEOUT, "no event and no speech for `idle_timeout_s`"),
    "session_expired": ErrorRule(C, 408, CloseCode.SESSION_EXPIRED, "older than `max_session_duration_s`"),
    "unknown_response": ErrorRule(C, 404, None, "no such response: never created, or forgotten"),
    "resume_refused": ErrorRule(C, 409, None, "a session or position that cannot be resumed"),
    "text_gap": ErrorRule(C, 409, None, "`text.append` begins behind the text that was received"),
    "unknown_call": ErrorRule(C, 404, None, "no such call: it never was, it has ended, or it is not yours"),
    "duplicate_response": ErrorRule(C, 409, None, "the response id is in use, or was a moment ago"),
    "text_closed": ErrorRule(C, 409, None, "text, a flush or an end after the end of the text"),
    "response_done": ErrorRule(C, 409, None, "text, a flush or an end after the end of the response"),
    "session_closed": ErrorRule(C, 409, None, "a new response or settings after `session.close`"),
    "slow_reader": ErrorRule(C, 408, None, "audio was due for `reader_timeout_s` and was not taken"),
    "text_timeout": ErrorRule(C, 408, None, "no text came for `text_timeout_s`, and nothing was left to play"),
    "unauthorized": ErrorRule(C, 401, CloseCode.POLICY_VIOLATION, "no API key, or a wrong one"),
    "insufficient_scope": ErrorRule(C, 403, CloseCode.POLICY_VIOLATION, "a token that is not meant for this"),
    "not_loopback": ErrorRule(C, 403, CloseCode.POLICY_VIOLATION, "a server without keys serves its own machine only"),
    "forbidden_host": ErrorRule(
        C, 403, CloseCode.POLICY_VIOLATION, "without keys: the Host header is no loopback name"
    ),
    "forbidden_origin": ErrorRule(C, 403, CloseCode.POLICY_VIOLATION, "without keys: a page of another origin"),
    "unknown_path": ErrorRule(C, 404, None, "no such address on this server"),
    "method_not_allowed": ErrorRule(C, 405, None, "an address that takes other methods; `Allow` names them"),
    "unsupported_subprotocol": ErrorRule(C, 400, None, "a handshake that does not offer `voicewire.v1`"),
    "invalid_request": ErrorRule(Q, 400, None, "a setting out of range; the message names field, limit and value"),
    "unknown_voice": ErrorRule(Q, 400, None, "no such voice"),
    "voice_not_found": ErrorRule(Q, 404, None, "no such voice, or it is not yours"),
    "voice_exists": ErrorRule(Q, 409, None, "a voice of this name is stored already"),
    "voice_protected": ErrorRule(
        Q, 403, None, "a voice of the model or the operator, which cannot be replaced or deleted"
    ),
    "unknown_lexicon": ErrorRule(Q, 400, None, "no such lexicon"),
    "lexicon_not_found": ErrorRule(Q, 404, None, "no such lexicon, or it is not yours"),
    "unknown_language": ErrorRule(Q, 400, None, "no such language"),
    "unsupported_format": ErrorRule(Q, 400, None, "an encoding, rate or setting that cannot be served"),
    "request_too_long": ErrorRule(Q, 413, None, "more text than one response may have"),
    "limit_exceeded": ErrorRule(K, 429, None, "a named limit was passed; try again if `retryable` (else 400)"),
    "overloaded": ErrorRule(K, 429, None, "no capacity now; try again after `retry_after_ms`"),
    "quota_exceeded": ErrorRule(K, 429, None, "a quota of the key is used up; it resets after `retry_after_ms`"),
    "too_many_connections": ErrorRule(K, 429, None, "`max_connections` is reached"),
    "draining": ErrorRule(K, 503, CloseCode.SERVICE_RESTART, "the server is about to stop; connect again"),
    "engine_timeout": ErrorRule(S, 504, None, "the engine made no sound for `engine_timeout_s`"),
    "engine_dead": ErrorRule(S, 503, None, "the engine stopped and is being restarted; replies that have begun go on"),
    "voices_unavailable": ErrorRule(S, 503, None, "stored voices cannot be compared with other gateways; try again"),
    "lexicons_unavailable": ErrorRule(S, 503, None, "lexicons cannot be compared with other gateways; try again"),
    "engine_error": ErrorRule(S, 500, None, "the engine failed on this request"),
    "bad_checkpoint": ErrorRule(S, 500, None, "a model folder that cannot be served"),
    "llm_failed": ErrorRule(S, 502, None, "the agent's language model failed, or did not answer in time"),
    "stt_failed": ErrorRule(S, 502, None, "the agent's recognizer failed, or did not answer in time"),
    "session_error": ErrorRule(S, 500, None, "the session failed"),
    "internal_error": ErrorRule(S, 500, CloseCode.INTERNAL_ERROR, "a fault of the server"),
}

CAPACITY_CODES = frozenset(code for code, rule in RULES.items() if rule.fault is FaultOwner.CAPACITY)
# A response that ends with one of these was refused after it had begun: by the engine, or when its turn came.
LATE_REFUSALS = ("overloaded", "limit_exceeded")


def rule_for(code: str) -> ErrorRule:
    return RULES.get(code, RULES["internal_error"])


def http_status(info: ErrorInfo) -> int:
    """A limit that no waiting lifts is the request's fault."""
    return (
        400
        if info.code in ("limit_exceeded", "quota_exceeded") and not info.retryable
        else rule_for(info.code).http_status
    )


def refusal_headers(info: ErrorInfo) -> dict[str, str]:
    """Return the headers of an HTTP answer with this error."""
    headers = {}
    if info.retry_after_ms is not None:
        headers["Retry-After"] = str(math.ceil(info.retry_after_ms / 1000))
    if http_status(info) == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return headers


def openai_error(info: ErrorInfo) -> dict[str, Any]:
    return {
        "message": info.message,
        "type": f"{rule_for(info.code).fault}_error",
        "param": info.param,
        "code": info.code,
    }
