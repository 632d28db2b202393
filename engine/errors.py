"""What can go wrong in the engine, by whose fault and what ends. No torch here."""

from __future__ import annotations

OVERLOAD_RETRY_MS = 1000


class EngineError(Exception):
    """Base of every error the engine raises on purpose; ``code`` is stable and machine-readable."""

    code = "engine_error"


class InvalidRequest(EngineError):
    """The caller's fault; ends that request. The message names the field, the limit and the value."""

    code = "invalid_request"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


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
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class EngineDead(EngineError):
    """Internal error: the loop stopped, and every request in it has failed."""

    code = "engine_dead"


class CheckpointError(EngineError):
    """A model folder that cannot be served; names the file, and the key or tensor that is wrong."""

    code = "bad_checkpoint"
