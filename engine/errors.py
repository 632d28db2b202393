"""The one error of all packages, and those of the engine, by whose fault and what ends. No torch here."""

from __future__ import annotations

import msgspec

OVERLOAD_RETRY_MS = 1000
# Codes of what may succeed when it is tried again. Another code, such as a limit, is retryable with a time.
RETRYABLE_CODES = frozenset(
    {
        "overloaded",
        "too_many_connections",
        "draining",
        "engine_error",
        "engine_dead",
        "engine_timeout",
        "voices_unavailable",
        "lexicons_unavailable",
        "bad_checkpoint",
        "llm_failed",
        "stt_failed",
    }
)


class ErrorInfo(msgspec.Struct, frozen=True):
    """An error as clients see it; the same five fields on every wire."""

    code: str
    message: str
    param: str | None = None
    retryable: bool = False
    retry_after_ms: int | None = None

    @classmethod
    def from_error(cls, error: BaseException) -> ErrorInfo:
        """Describe any error. What was not raised on purpose keeps its message to itself."""
        return error.info if isinstance(error, SpeechError) else INTERNAL_ERROR


INTERNAL_ERROR = ErrorInfo("internal_error", "internal error")


class SpeechError(Exception):
    """Base of every error raised on purpose; ``code`` is stable and machine-readable."""

    code = INTERNAL_ERROR.code

    def __init__(self, message: str, param: str | None = None, retry_after_ms: int | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.retry_after_ms = retry_after_ms

    @property
    def info(self) -> ErrorInfo:
        retryable = self.code in RETRYABLE_CODES or self.retry_after_ms is not None
        return ErrorInfo(self.code, str(self), self.param, retryable, self.retry_after_ms)


class CodedError(SpeechError):
    """An error of any code."""

    def __init__(self, code: str, message: str, param: str | None = None, retry_after_ms: int | None = None) -> None:
        super().__init__(message, param, retry_after_ms)
        self.code = code


class EngineError(SpeechError):
    """Base of the engine's errors; as it is, a failure of one request."""

    code = "engine_error"


class InvalidRequest(EngineError):
    """The caller's fault; ends that request. The message names the field, the limit and the value."""

    code = "invalid_request"


class UnknownVoice(InvalidRequest):
    code = "unknown_voice"


class UnknownLanguage(InvalidRequest):
    code = "unknown_language"


class RequestTooLong(InvalidRequest):
    code = "request_too_long"


class EngineOverloaded(EngineError):
    """Capacity; the same request may succeed after ``retry_after_ms``."""

    code = "overloaded"

    def __init__(self, message: str, retry_after_ms: int) -> None:
        super().__init__(message, retry_after_ms=retry_after_ms)


class EngineDead(EngineError):
    """Internal error: the loop stopped, and every request in it has failed."""

    code = "engine_dead"


class CheckpointError(EngineError):
    """A model folder that cannot be served; names the file, and the key or tensor that is wrong."""

    code = "bad_checkpoint"
