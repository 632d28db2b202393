"""Errors: their rules, and the body of each code on every wire."""

from __future__ import annotations

import itertools
import json
import lzma
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.api import EngineOverloaded, ErrorInfo, SpeechError, UnknownVoice
from engine.errors import CheckpointError, EngineDead, EngineError
from realtime.dialect_connection import refusal
from realtime.errors import (
    RULES,
    FaultOwner,
    LocalProtocolError,
    RemoteProtocolError,
    RequestRefused,
    http_status,
    openai_error,
)
from realtime.protocol import call_events, model, native
from realtime.protocol.dialects.base import Dialect, DialectRoute
from realtime.protocol.dialects.registry import DIALECT_ROUTES
from realtime.protocol.events import ErrorEvent, HeardBody, ResponseDone
from realtime.protocol.mqtt import messages
from realtime.protocol.telephony.model import CallReplyFailed, CommandRefused
from realtime.protocol.transitions import RESPONSE_TRANSITIONS, SESSION_TRANSITIONS, EventRefusal
from realtime.transports.http_routes import refusal_response
from sessions.errors import EngineFailed, EngineTimeout, LimitExceeded, TextInputClosed
from tests.realtime.dialects.exchange import call, read_exchanges, wire_of
from tests.realtime.dialects.test_exchanges import RECORDINGS


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
    assert RequestRefused(code, "m").info.retryable == (code not in ("limit_exceeded", "quota_exceeded"))


TABLE = Path(__file__).parents[1] / "vectors" / "error_bodies.jsonl.xz"
Shape = Callable[[ErrorInfo], Any]


def answer(response: Any) -> Any:
    kept = {name: value for name, value in response.headers.items() if not name.startswith("content-")}
    return [response.status_code, kept, json.loads(response.body)]


def native_done(info: ErrorInfo) -> str:
    done = ResponseDone(response_id="r", response=1, status="failed", audio_samples=0, audio_ms=0.0, error=info)
    return native.serialize(done)


def reply_failed(info: ErrorInfo) -> str:
    heard = HeardBody(text="a", remaining="b", played_ms=0.0)
    return call_events.serialize(CallReplyFailed(call_id="c", reply_id="r", error=info, heard=heard))


# Each code as it is reported; a limit may be lifted by waiting or not.
WAIT_MS = {"limit_exceeded": 1_500, "overloaded": 700, "too_many_connections": 1_000, "draining": 2_000}
UNAVAILABLE = {"voices_unavailable", "lexicons_unavailable"}
RETRYABLE = {"engine_timeout", "engine_dead", "engine_error", "bad_checkpoint", *UNAVAILABLE, *WAIT_MS}
INFOS = [ErrorInfo(code, "what happened", "field", code in RETRYABLE, WAIT_MS.get(code)) for code in RULES]


INFOS.append(ErrorInfo("limit_exceeded", "what happened", "field"))


SHAPES: dict[str, Shape] = {
    "native error": lambda info: native.serialize(ErrorEvent.from_info(info, "r")),
    "native response.done": native_done,
    "HTTP": lambda info: answer(refusal_response(info)),
    "HTTP speech event": lambda info: openai_error(info) | {"status": http_status(info)},
    "HTTP batch item": lambda info: {"error": openai_error(info)},
    "calls command": lambda info: call_events.serialize(CommandRefused.from_info(info, "c")),
    "calls reply": reply_failed,
    "MQTT": lambda info: messages.serialize(messages.MqttRefusal(error=info)),
}


def opened(wire: DialectRoute) -> tuple[Dialect, str]:
    """A dialect as it is when its recorded client is sent the first audio of a context."""
    for head, *steps in itertools.chain.from_iterable(map(read_exchanges, RECORDINGS)):
        first = next((at for at, step in enumerate(steps) if step.get("event", [""])[0] == "ContextAudio"), None)
        if first is not None and wire_of(head).dialect is wire.dialect:
            dialect = wire.dialect(model.ClientHandshake(**head["handshake"]))
            for step in steps[:first]:
                call(dialect, step)
            return dialect, steps[first]["event"][1]["context"]
    raise AssertionError(f"no audio in the recordings of {wire.path}")


def dialect_shapes(wire: DialectRoute) -> Iterator[tuple[str, Shape]]:
    def play(step_of: Callable[[str, Any], dict[str, Any]]) -> Shape:
        dialect, context = opened(wire)
        start = pickle.dumps(dialect)
        return lambda info: call(pickle.loads(start), step_of(context, msgspec.to_builtins(info)))["intents"]

    ended = {"status": "failed", "audio_ms": 0.0, "heard": "", "remaining": "", "played_ms": 0.0}
    yield "handshake", lambda info: answer(refusal(wire, info))
    yield "context", play(lambda name, error: {"event": ["ContextEnded", ended | {"context": name, "error": error}]})
    yield "connection", play(lambda _, error: {"fail": error, "close": 1011})


def bodies() -> Iterator[dict[str, Any]]:
    """One entry for each wire and body, with the codes that have it."""
    shapes = dict(SHAPES)
    for wire in {wire.dialect: wire for wire in reversed(DIALECT_ROUTES)}.values():
        shapes |= {f"{wire.path} {wire.transport} {part}": shape for part, shape in dialect_shapes(wire)}
    for name, shape in shapes.items():
        codes: dict[str, list[str]] = {}
        for info in INFOS:
            body = re.sub(rf"\b{info.code}\b", "<code>", json.dumps(shape(info)))
            codes.setdefault(body, []).append(info.code)
        yield from ({"wire": name, "body": json.loads(body), "codes": codes[body]} for body in codes)


def test_bodies_of_every_code_are_as_recorded() -> None:
    recorded = [json.loads(line) for line in lzma.decompress(TABLE.read_bytes()).splitlines()]
    assert list(bodies()) == recorded, "if this change is meant: python -m tests.realtime.test_errors"


if __name__ == "__main__":
    TABLE.write_bytes(lzma.compress("".join(json.dumps(entry) + "\n" for entry in bodies()).encode()))
