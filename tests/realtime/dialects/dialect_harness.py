"""Plays a dialect by hand: what a client says and what becomes of it go in, intents and messages come out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from engine.api import ErrorInfo
from realtime.protocol import model
from realtime.protocol.dialects.base import Dialect

REQUEST_ID = "0123456789abcdef0123456789abcdef"


def handshake(path: Mapping[str, str] | None = None, **query: str) -> model.ClientHandshake:
    return model.ClientHandshake(path=path or {}, query=query, headers={}, request_id=REQUEST_ID)


class DialectHarness:
    """``say`` and ``tell`` give intents; JSON messages among them come as dicts, other messages as they are."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.beginning = self._read(dialect.start())

    def say(self, message: str | bytes | None = None, **fields: Any) -> list[Any]:
        return self._read(self.dialect.receive_message(json.dumps(fields) if message is None else message))

    def tell(self, event: model.DialectEvent) -> list[Any]:
        return self._read(self.dialect.send_event(event))

    def audio(self, context: str, data: bytes = b"\0\0", start_ms: float = 0.0, end_ms: float = 80.0) -> list[Any]:
        return self.tell(model.ContextAudio(context, data, start_ms, end_ms))

    def fail(self, code: str, close: int | None = None) -> list[Any]:
        return self._read(self.dialect.send_error(ErrorInfo(code=code, message="what happened"), close))

    @staticmethod
    def _read(intents: Any) -> list[Any]:
        return [_message(intent.message) if isinstance(intent, model.SendMessage) else intent for intent in intents]


def _message(message: str | bytes) -> Any:
    return json.loads(message) if isinstance(message, str) and message.startswith("{") else message


def word(text: str, start_ms: float, end_ms: float, spoken: str = "") -> model.TimedWord:
    """Its characters take the same time each."""
    return model.TimedWord(
        text, start_ms, end_ms, _ends(text, start_ms, end_ms), spoken, _ends(spoken, start_ms, end_ms) if spoken else ()
    )


def _ends(text: str, start_ms: float, end_ms: float) -> tuple[float, ...]:
    return tuple(start_ms + (end_ms - start_ms) * (at + 1) / len(text) for at in range(len(text)))


def failed(context: str, code: str) -> model.ContextEnded:
    return model.ContextEnded(context, "failed", error=ErrorInfo(code=code, message="what happened", retryable=True))
