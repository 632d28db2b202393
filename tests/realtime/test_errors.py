from __future__ import annotations

import pytest

from engine.api import EngineOverloaded, ErrorInfo, SpeechError, UnknownVoice
from engine.errors import CheckpointError, EngineDead, EngineError
from realtime.errors import RULES, FaultOwner, LocalProtocolError, RemoteProtocolError, RequestRefused
from realtime.protocol.transitions import RESPONSE_TRANSITIONS, SESSION_TRANSITIONS, EventRefusal
from sessions.errors import EngineFailed, EngineTimeout, LimitExceeded, TextInputClosed


def family(base: type[SpeechError]) -> set[type[SpeechError]]:
    return {base}.union(*(family(child) for child in base.__subclasses__()))


def test_every_code_there_is_has_a_rule() -> None:
    raised = {kind.code for kind in family(SpeechError)}
    refused = {
        move.code
        for table in (RESPONSE_TRANSITIONS, SESSION_TRANSITIONS)
        for row in table.values()
        for move in row.values()
        if isinstance(move, EventRefusal)
    }
    assert raised | refused <= set(RULES)


@pytest.mark.parametrize(
    ("error", "info"),
    [
        (RemoteProtocolError("invalid_event", "m", "text"), ErrorInfo("invalid_event", "m", "text")),
        (RequestRefused("too_many_connections", "m", None, 5), ErrorInfo("too_many_connections", "m", None, True, 5)),
        (RequestRefused("unauthorized", "m"), ErrorInfo("unauthorized", "m")),
        (RequestRefused("draining", "m"), ErrorInfo("draining", "m", None, True)),
        (UnknownVoice("m", "voice"), ErrorInfo("unknown_voice", "m", "voice")),
        (EngineOverloaded("m", 7), ErrorInfo("overloaded", "m", None, True, 7)),
        (EngineError("m"), ErrorInfo("engine_error", "m", None, True)),
        (EngineDead("m"), ErrorInfo("engine_dead", "m", None, True)),
        (CheckpointError("m"), ErrorInfo("bad_checkpoint", "m", None, True)),
        (EngineFailed("overloaded", "m", None, 700), ErrorInfo("overloaded", "m", None, True, 700)),
        (EngineFailed("request_too_long", "m"), ErrorInfo("request_too_long", "m")),
        (EngineTimeout("m"), ErrorInfo("engine_timeout", "m", None, True)),
        (TextInputClosed("m", "r"), ErrorInfo("text_closed", "m", "r")),
        (LimitExceeded("m", "x"), ErrorInfo("limit_exceeded", "m", "x")),
        (LimitExceeded("m", None, 500), ErrorInfo("limit_exceeded", "m", None, True, 500)),
        (LocalProtocolError("a secret"), ErrorInfo("internal_error", "internal error")),
        (ValueError("a secret"), ErrorInfo("internal_error", "internal error")),
    ],
)
def test_every_error_has_the_shape_that_clients_see(error: Exception, info: ErrorInfo) -> None:
    assert ErrorInfo.from_error(error) == info


@pytest.mark.parametrize("code", [code for code, rule in RULES.items() if rule.fault is FaultOwner.CAPACITY])
def test_capacity_is_worth_another_try(code: str) -> None:
    assert RequestRefused(code, "m", retry_after_ms=5).info.retryable
    assert RequestRefused(code, "m").info.retryable == (code != "limit_exceeded")
