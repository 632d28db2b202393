"""What can go wrong between a client and its speech, told in the one shape that every wire shows."""

from __future__ import annotations

import msgspec

from engine.api import EngineDead, EngineError, EngineOverloaded, InvalidRequest


class SessionError(Exception):
    """Base of every error the sessions raise on purpose; ``code`` is stable and machine-readable."""

    code = "session_error"
    retryable = False

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class UnsupportedFormat(SessionError):
    """The request's fault: an encoding, rate or setting that cannot be served."""

    code = "unsupported_format"


class LimitExceeded(SessionError):
    """A named limit was passed; the message holds its name and value. ``retry_after_ms``: when it may succeed."""

    code = "limit_exceeded"

    def __init__(self, message: str, param: str | None = None, retry_after_ms: int | None = None) -> None:
        super().__init__(message, param)
        self.retryable = retry_after_ms is not None
        self.retry_after_ms = retry_after_ms


class TextInputClosed(SessionError):
    """Text or a flush after the end of the text, or after the end of the response."""

    code = "text_closed"


class UnknownResponse(SessionError):
    """No response of this session has this id."""

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
    retryable = True


class EngineFailed(SessionError):
    """The engine ended a segment with an error; ``code`` is the engine's."""

    def __init__(self, code: str, message: str, retry_after_ms: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after_ms = retry_after_ms
        self.retryable = code in (EngineError.code, EngineDead.code, EngineOverloaded.code)


class ErrorInfo(msgspec.Struct, frozen=True):
    """An error as clients see it; the same five fields on every wire."""

    code: str
    message: str
    param: str | None = None
    retryable: bool = False
    retry_after_ms: int | None = None


def error_info(error: Exception) -> ErrorInfo:
    """Tell any error in the shape clients see. What was not raised on purpose keeps its message to itself."""
    match error:
        case LimitExceeded() | EngineFailed():
            return ErrorInfo(error.code, str(error), error.param, error.retryable, error.retry_after_ms)
        case SessionError():
            return ErrorInfo(error.code, str(error), error.param, error.retryable)
        case InvalidRequest():
            return ErrorInfo(error.code, str(error), error.param)
        case EngineOverloaded():
            return ErrorInfo(error.code, str(error), retryable=True, retry_after_ms=error.retry_after_ms)
        case EngineError():
            return ErrorInfo(error.code, str(error), retryable=True)
        case _:
            return ErrorInfo("internal_error", "internal error")
