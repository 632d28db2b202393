from __future__ import annotations

import pytest

from engine.api import EngineOverloaded, UnknownVoice
from engine.errors import EngineError
from realtime.errors import RULES, RequestRefused, describe
from realtime.protocol.errors import RemoteProtocolError
from realtime.protocol.transitions import RESPONSE_TRANSITIONS, SESSION_TRANSITIONS, EventRefusal
from sessions.errors import SessionError


def family(base: type[Exception]) -> set[type[Exception]]:
    return {base}.union(*(family(child) for child in base.__subclasses__()))


def test_every_code_there_is_has_a_rule() -> None:
    raised = {kind.code for base in (EngineError, SessionError) for kind in family(base)}  # type: ignore[attr-defined]
    refused = {
        move.code
        for table in (RESPONSE_TRANSITIONS, SESSION_TRANSITIONS)
        for row in table.values()
        for move in row.values()
        if isinstance(move, EventRefusal)
    }
    assert raised | refused <= set(RULES)


@pytest.mark.parametrize(
    ("error", "code", "param", "retry_after_ms"),
    [
        (RemoteProtocolError("invalid_event", "m", "text"), "invalid_event", "text", None),
        (RequestRefused("too_many_connections", "m", retry_after_ms=5), "too_many_connections", None, 5),
        (UnknownVoice("m", "voice"), "unknown_voice", "voice", None),
        (EngineOverloaded("m", 7), "overloaded", None, 7),
    ],
)
def test_all_errors_are_told_in_one_shape(
    error: Exception, code: str, param: str | None, retry_after_ms: int | None
) -> None:
    info = describe(error)
    assert (info.code, info.message, info.param, info.retry_after_ms) == (code, "m", param, retry_after_ms)


def test_our_own_faults_keep_their_message() -> None:
    assert describe(ValueError("a secret")).message == "internal error"


def test_capacity_is_worth_another_try() -> None:
    assert describe(RequestRefused("draining", "m")).retryable
    assert not describe(RequestRefused("unauthorized", "m")).retryable
