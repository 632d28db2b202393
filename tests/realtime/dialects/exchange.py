"""Exchanges of dialects as data: recorded at a connection, and replayed against the dialect alone.

The files say "intents" for commands and "carrier" for the transport.

A JSONL file holds one or several exchanges. The first line of each is the handshake; each further line is one call of
the dialect with the intents that it gave: ``begin``, ``receive`` of a client's message, an ``event`` of a context, or
``fail``. Files named ``case-*`` show one rule of a wire each; the others are recordings of clients.

    python -m tests.realtime.dialects.exchange FILE...

writes into each step of the files what the dialect makes of it today, for review in the diff: for a new case, write the
handshakes and the steps without their intents.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from engine.api import ErrorInfo
from realtime.errors import ProtocolError
from realtime.protocol import model
from realtime.protocol.dialects.base import Dialect, DialectRoute
from realtime.protocol.dialects.registry import DIALECT_ROUTES
from tests.vectors import VECTORS

MAX_MESSAGE_CHARS = 2_000  # of those that a fuzzer bends
MAX_EXCHANGE_CHARS = 48_000  # a recording ends before the step that would exceed it; a prefix is an exchange, too
SECRET_HEADERS = ("authorization", "cookie", "sec-websocket-key", "user-agent")
SECRET_WORDS = ("key", "auth", "token")


def encode(value: Any) -> Any:
    """JSON of a message, an intent or an event. Bytes become ``{"base64": ...}``."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, model.SendMessage):
        return ["Send", encode(value.message)]
    if isinstance(value, str):
        return value
    return [type(value).__name__, msgspec.to_builtins(value)]


def decode_message(value: Any) -> str | bytes:
    return base64.b64decode(value["base64"]) if isinstance(value, dict) else str(value)


def decode_event(value: list[Any]) -> model.DialectEvent:
    name, fields = value
    return msgspec.convert(fields, type=getattr(model, name))


def call(dialect: Dialect, step: dict[str, Any]) -> dict[str, Any]:
    """Carry out one step; the step with what the dialect gave."""
    try:
        intents = list(_intents(dialect, step))
    except ProtocolError as error:
        return _input_of(step) | {"raises": [error.code, error.param]}
    return _input_of(step) | {"intents": [encode(intent) for intent in intents]}


def _intents(dialect: Dialect, step: dict[str, Any]) -> Iterable[model.DialectCommand]:
    match step:
        case {"begin": _}:
            return dialect.start()
        case {"receive": message}:
            return dialect.receive_message(decode_message(message))
        case {"event": event}:
            return dialect.send_event(decode_event(event))
        case {"fail": error, "close": close}:
            return dialect.send_error(msgspec.convert(error, type=ErrorInfo), close)
    raise ValueError(f"no step has the keys {sorted(step)}")


def _input_of(step: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in step.items() if name not in ("intents", "raises")}


def wire_of(head: dict[str, Any]) -> DialectRoute:
    return next(wire for wire in DIALECT_ROUTES if (wire.path, wire.transport) == (head["wire"], head["carrier"]))


Exchange = list[dict[str, Any]]


def read_exchanges(path: Path) -> list[Exchange]:
    exchanges: list[Exchange] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        step = json.loads(line)
        if "handshake" in step:
            exchanges.append([])
        exchanges[-1].append(step)
    return exchanges


def replay(exchange: Exchange) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each recorded step, the handshake first, beside what the dialect of today makes of it."""
    head, *steps = exchange
    try:
        dialect = wire_of(head).dialect(msgspec.convert(head["handshake"], type=model.ClientHandshake))
    except ProtocolError as error:
        yield head, _input_of(head) | {"raises": [error.code, error.param]}
        return
    yield head, _input_of(head)
    for step in steps:
        yield step, json.loads(json.dumps(call(dialect, step)))


def messages_of(path: str) -> list[dict[str, Any] | bytes]:
    """Messages that clients of the wires at this address sent, each shape at most twice: what a fuzzer bends."""
    found: dict[str, list[dict[str, Any] | bytes]] = {}
    for file in sorted((VECTORS / "exchanges").rglob("*.jsonl")):
        for exchange in read_exchanges(file):
            for step in exchange if exchange[0]["wire"] == path else ():
                if "receive" not in step or len(message := decode_message(step["receive"])) > MAX_MESSAGE_CHARS:
                    continue
                try:
                    fields = json.loads(message) if isinstance(message, str) else None
                except ValueError:
                    fields = None
                shape = f"{fields.get('type')} {sorted(fields)}" if isinstance(fields, dict) else str(len(message))
                raw = message if isinstance(message, bytes) else message.encode()
                found.setdefault(shape, []).append(fields if isinstance(fields, dict) else raw)
    return [message for messages in found.values() for message in messages[:2]]


class RecordingDialect:
    """Stands in a connection for a dialect, and records what passes."""

    def __init__(self, dialect: Dialect, wire: DialectRoute, path: Path) -> None:
        self._dialect = dialect
        handshake = clean(dialect.handshake)
        self._lines = [json.dumps({"wire": wire.path, "carrier": wire.transport, "handshake": handshake})]
        self._num_chars = 0
        self._is_full = False
        self._path = path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dialect, name)

    def start(self) -> list[model.DialectCommand]:
        return self._record({"begin": True}, self._dialect.start)

    def receive_message(self, message: model.Message) -> list[model.DialectCommand]:
        return self._record({"receive": encode(message)}, lambda: self._dialect.receive_message(message))

    def send_event(self, event: model.DialectEvent) -> list[model.DialectCommand]:
        return self._record({"event": encode(event)}, lambda: self._dialect.send_event(event))

    def send_error(self, error: ErrorInfo, close: int | None) -> list[model.DialectCommand]:
        step = {"fail": msgspec.to_builtins(error), "close": close}
        return self._record(step, lambda: self._dialect.send_error(error, close))

    def _record(self, step: dict[str, Any], carry_out: Any) -> list[model.DialectCommand]:
        try:
            intents = list(carry_out())
        except ProtocolError as error:
            self._add(step | {"raises": [error.code, error.param]})
            raise
        self._add(step | {"intents": [encode(intent) for intent in intents]})
        return intents

    def _add(self, step: dict[str, Any]) -> None:
        line = json.dumps(step)
        self._num_chars += len(line)
        self._is_full = self._is_full or self._num_chars > MAX_EXCHANGE_CHARS
        if not self._is_full:
            self._lines.append(line)
            self._path.write_text("\n".join(self._lines) + "\n", encoding="utf-8")


def clean(handshake: model.ClientHandshake) -> Any:
    """The handshake without credentials and what only names a client's version."""
    fields = msgspec.to_builtins(handshake)
    fields["headers"] = {
        name: value
        for name, value in fields["headers"].items()
        if name not in SECRET_HEADERS and not any(word in name for word in SECRET_WORDS)
    }
    fields["query"] = {name: value for name, value in fields["query"].items() if "key" not in name}
    fields["subprotocols"] = [name for name in fields["subprotocols"] if "key" not in name]
    return fields


def fill(path: Path) -> None:
    """Write what the dialect gives for each step of a file."""
    steps = [given for exchange in read_exchanges(path) for _, given in replay(exchange)]
    path.write_text("".join(json.dumps(step) + "\n" for step in steps), encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        fill(Path(name))
