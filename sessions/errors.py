"""Errors of sessions and responses."""

from __future__ import annotations

from engine.api import CodedError, SpeechError


class SessionError(SpeechError):
    """Base of the sessions' errors."""

    code = "session_error"


class UnsupportedFormat(SessionError):
    """The request's fault: an encoding, rate or setting that cannot be served."""

    code = "unsupported_format"


class LimitExceeded(SessionError):
    """A named limit was passed; the message holds its name and value. ``retry_after_ms``: when it may succeed."""

    code = "limit_exceeded"


class QuotaExceeded(SessionError):
    """A quota of the key is used up; the message holds its name, its value and the time until it resets."""

    code = "quota_exceeded"


class TextInputClosed(SessionError):
    """Text or a flush after the end of the text, or after the end of the response."""

    code = "text_closed"


class UnknownResponse(SessionError):
    """Raised for an id that no response of the session has."""

    code = "unknown_response"


class DuplicateResponse(SessionError):
    """The id is in use, or was used a moment ago, in this session."""

    code = "duplicate_response"


class SessionClosed(SessionError):
    """The session takes no more work."""

    code = "session_closed"


class SlowReader(SessionError):
    """Audio was due for longer than the limit and was not read."""

    code = "slow_reader"


class TextTimeout(SessionError):
    """A response waited for text for longer than the limit."""

    code = "text_timeout"


class EngineTimeout(SessionError):
    """The engine had text and made no sound for longer than the limit."""

    code = "engine_timeout"


class EngineFailed(CodedError):
    """The engine ended a segment with an error; ``code`` and ``param`` are the engine's."""
