"""Deepgram's ``/v1/speak`` socket: one line of text, cut into turns by flushes; audio comes as it is, in binary."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from engine.api import ErrorInfo
from realtime.errors import RemoteProtocolError
from realtime.protocol import model
from realtime.protocol.close import CloseCode
from realtime.protocol.dialects.base import Dialect
from realtime.protocol.dialects.deepgram_common import parse_options, refusal, socket_format
from realtime.protocol.dialects.parsing import dump, parse_json, text_only

MODEL_UUID = "00000000-0000-0000-0000-000000000000"
MODEL_VERSION = "voicewire"
MAX_REASON_BYTES = 120
CLOSES: dict[int, int] = {CloseCode.INVALID_DATA: 1008, CloseCode.UNSUPPORTED_DATA: 1008, CloseCode.GOING_AWAY: 1000}


class DeepgramMessage(Struct):
    type: str
    text: str | None = None


@dataclass(slots=True)
class DeepgramTurn:
    """From its first text to its flush."""

    flushed: bool = False
    cleared: bool = False


class DeepgramDialect(Dialect):
    """Each turn is a context; they are spoken one after the other."""

    def __init__(self, handshake: model.ClientHandshake) -> None:
        super().__init__(handshake)
        self.options = parse_options(handshake.query, socket_format(handshake.query))
        self._model = handshake.query.get("model") or "default"
        self._turns: dict[str, DeepgramTurn] = {}
        self._num_turns = 0
        self._num_answers = 0

    def headers(self) -> dict[str, str]:
        return {"dg-request-id": self.handshake.request_id}

    def start(self) -> Iterator[model.DialectCommand]:
        yield self._send(
            "Metadata",
            request_id=self.handshake.request_id,
            model_name=self._model,
            model_version=MODEL_VERSION,
            model_uuid=MODEL_UUID,
        )

    def receive_message(self, message: model.Message) -> Iterator[model.DialectCommand]:
        said = parse_json(text_only(message), DeepgramMessage)
        match said.type:
            case "Speak":
                yield from self._append(said.text or "")
            case "Flush":
                yield from self._flush()
            case "Clear":
                yield from self._clear()
            case "Close":
                yield from self._finish()
            case "KeepAlive":
                pass
            case _:
                message = f"type must be Speak, Flush, Clear or Close, is {said.type[:40]!r}"
                raise RemoteProtocolError("unknown_event", message, "type")

    def send_event(self, event: model.DialectEvent) -> Iterator[model.DialectCommand]:
        match event:
            case model.ContextAudio():
                yield model.SendMessage(event.data)
            case model.ContextEnded():
                yield from self._end(event)
            case model.AllContextsEnded():
                yield model.CloseConnection()

    def send_error(self, error: ErrorInfo, close: int | None) -> Iterator[model.DialectCommand]:
        yield self._error(error)
        if close is not None:
            yield model.CloseConnection(
                CLOSES.get(close, close), error.message.encode()[:MAX_REASON_BYTES].decode(errors="ignore")
            )

    @classmethod
    def reject_handshake(cls, error: ErrorInfo, status: int) -> tuple[dict[str, Any], dict[str, str]]:
        return refusal(error)

    def _append(self, text: str) -> Iterator[model.DialectCommand]:
        context = self._open_turn
        if context is None:
            if not text.strip():
                return
            context = yield from self._begin_turn()
        yield model.AppendText(context, text)

    def _flush(self) -> Iterator[model.DialectCommand]:
        """Also a flush of nothing is answered, in its turn."""
        context = self._open_turn
        if context is None:
            context = yield from self._begin_turn()
        self._turns[context].flushed = True
        yield model.EndContext(context)

    def _clear(self) -> Iterator[model.DialectCommand]:
        for context, turn in self._turns.items():
            turn.cleared = True
            yield model.CancelContext(context)
        yield self._answer("Cleared")

    def _finish(self) -> Iterator[model.DialectCommand]:
        context = self._open_turn
        if context is not None:
            yield model.EndContext(context)
        yield model.FinishContexts()

    @property
    def _open_turn(self) -> str | None:
        """The turn that text goes to."""
        context, turn = next(reversed(self._turns.items()), (None, None))
        return None if turn is None or turn.flushed or turn.cleared else context

    def _begin_turn(self) -> Generator[model.DialectCommand, None, str]:
        context = str(self._num_turns)
        self._num_turns += 1
        self._turns[context] = DeepgramTurn()
        assert self.options is not None
        yield model.OpenContext(context, self.options)
        return context

    def _end(self, event: model.ContextEnded) -> Iterator[model.DialectCommand]:
        turn = self._turns.pop(event.context)
        if turn.cleared:
            return
        if event.error is not None and event.error.code != "text_timeout":
            yield self._error(event.error)
        if turn.flushed:
            yield self._answer("Flushed")

    def _answer(self, kind: str) -> model.SendMessage:
        number, self._num_answers = self._num_answers, self._num_answers + 1
        return self._send(kind, sequence_id=number)

    def _error(self, error: ErrorInfo) -> model.SendMessage:
        told = {"description": error.message, "code": error.code}
        return self._send("Error", **told, err_msg=error.message, err_code=error.code)

    def _send(self, kind: str, **fields: Any) -> model.SendMessage:
        return model.SendMessage(dump(type=kind, **fields))
