"""What every error code looks like on every wire: equal to the recorded table.

    python -m tests.realtime.test_error_bodies

writes the table anew, for review in the diff. A code that stands in a body is written ``<code>``, so that codes with
the same body share one entry.
"""

from __future__ import annotations

import itertools
import json
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from engine.api import ErrorInfo
from realtime.dialect_connection import refusal
from realtime.errors import RULES, http_status, openai_error
from realtime.protocol import call_events, model, native
from realtime.protocol.dialects.base import Dialect
from realtime.protocol.dialects.registry import DIALECT_ROUTES, DialectRoute
from realtime.protocol.events import ErrorEvent, HeardBody, ResponseDone
from realtime.protocol.mqtt import messages
from realtime.transports.http_routes import refusal_response
from tests.realtime.dialects.exchange import call, read_exchanges, wire_of
from tests.realtime.dialects.test_exchanges import RECORDINGS

TABLE = Path(__file__).parents[1] / "vectors" / "error_bodies.jsonl"
Shape = Callable[[ErrorInfo], Any]


def answer(response: Any) -> Any:
    kept = {name: value for name, value in response.headers.items() if not name.startswith("content-")}
    return [response.status_code, kept, json.loads(response.body)]


def native_done(info: ErrorInfo) -> str:
    done = ResponseDone(response_id="r", response=1, status="failed", audio_samples=0, audio_ms=0.0, error=info)
    return native.serialize(done)


def reply_failed(info: ErrorInfo) -> str:
    heard = HeardBody(text="a", remaining="b", played_ms=0.0)
    return call_events.serialize(model.CallReplyFailed(call_id="c", reply_id="r", error=info, heard=heard))


# Each code as it is reported; a limit may be lifted by waiting or not.
WAIT_MS = {"limit_exceeded": 1_500, "overloaded": 700, "too_many_connections": 1_000, "draining": 2_000}
RETRYABLE = {"engine_timeout", "engine_dead", "engine_error", "bad_checkpoint", *WAIT_MS}
INFOS = [ErrorInfo(code, "what happened", "field", code in RETRYABLE, WAIT_MS.get(code)) for code in RULES]
INFOS.append(ErrorInfo("limit_exceeded", "what happened", "field"))


SHAPES: dict[str, Shape] = {
    "native error": lambda info: native.serialize(ErrorEvent.from_info(info, "r")),
    "native response.done": native_done,
    "HTTP": lambda info: answer(refusal_response(info)),
    "HTTP speech event": lambda info: openai_error(info) | {"status": http_status(info)},
    "HTTP batch item": lambda info: {"error": openai_error(info)},
    "calls command": lambda info: call_events.serialize(model.CommandRefused.from_info(info, "c")),
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
    recorded = [json.loads(line) for line in TABLE.read_text(encoding="utf-8").splitlines()]
    assert list(bodies()) == recorded


if __name__ == "__main__":
    TABLE.write_text("".join(json.dumps(entry) + "\n" for entry in bodies()), encoding="utf-8")
