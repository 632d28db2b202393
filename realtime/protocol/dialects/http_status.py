"""The HTTP status of each error, for wires that tell one inside a message. A test holds it to the server's table."""

from __future__ import annotations

from realtime.protocol.events import ErrorBody

BAD_REQUEST = 400
# What is not listed is the request's fault.
STATUSES = {
    "unauthorized": 401,
    "insufficient_scope": 403,
    "not_loopback": 403,
    "forbidden_host": 403,
    "forbidden_origin": 403,
    "voice_protected": 403,
    "unknown_path": 404,
    "voice_not_found": 404,
    "unknown_response": 404,
    "unknown_call": 404,
    "method_not_allowed": 405,
    "body_timeout": 408,
    "idle_timeout": 408,
    "session_expired": 408,
    "slow_reader": 408,
    "text_timeout": 408,
    "duplicate_response": 409,
    "text_closed": 409,
    "response_done": 409,
    "session_closed": 409,
    "voice_exists": 409,
    "message_too_big": 413,
    "request_too_long": 413,
    "limit_exceeded": 429,
    "overloaded": 429,
    "too_many_connections": 429,
    "engine_error": 500,
    "bad_checkpoint": 500,
    "session_error": 500,
    "internal_error": 500,
    "draining": 503,
    "engine_dead": 503,
    "engine_timeout": 504,
}


def status_of(error: ErrorBody) -> int:
    """A limit that no waiting lifts is the request's fault too."""
    if error.code == "limit_exceeded" and not error.retryable:
        return BAD_REQUEST
    return STATUSES.get(error.code, BAD_REQUEST)
