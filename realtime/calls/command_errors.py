"""What an agent is answered when its command cannot be obeyed."""

from __future__ import annotations

from engine.api import EngineError
from realtime.errors import RequestRefused, describe
from realtime.protocol import call_events as on
from realtime.protocol.errors import ProtocolError
from sessions.errors import SessionError

COMMAND_ERRORS = (ProtocolError, RequestRefused, SessionError, EngineError)


def to_command_refused(error: Exception, call_id: str | None) -> on.CommandRefused:
    info = describe(error)
    return on.CommandRefused(
        call_id=call_id,
        code=info.code,
        message=info.message,
        param=info.param,
        retryable=info.retryable,
        retry_after_ms=info.retry_after_ms,
    )
