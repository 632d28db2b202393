"""Deepgram's ``/v1/speak`` socket: one line of text, cut into turns by flushes; audio comes as it is, in binary."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from engine.api import ErrorInfo
from realtime.errors import RemoteProtocolError
from realtime.protocol.close import CloseCode
from realtime.protocol.dialects import base as on
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


class DeepgramDialect(on.Dialect):
    """Each turn is a context; they are spoken one after the other."""

    def __init__(self, handshake: on.ClientHandshake) -> None:
        super().__init__(handshake)
        self.options = parse_options(handshake.query, socket_format(handshake.query))
        self._model = handshake.query.get("model") or "default"
        self._turns: dict[str, DeepgramTurn] = {}
        self._num_turns = 0
        self._num_answers = 0

    def headers(self) -> dict[str, str]:
        return {"dg-request-id": self.handshake.request_id}

    def start(self) -> Iterator[on.DialectCommand]:
        yield self._send(
            "Metadata",
            request_id=self.handshake.request_id,
            model_name=self._model,
            model_version=MODEL_VERSION,
            model_uuid=MODEL_UUID,
        )

    def receive_message(self, message: on.Message) -> Iterator[on.DialectCommand]:
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

    def send_event(self, event: on.DialectEvent) -> Iterator[on.DialectCommand]:
        match event:
            case on.ContextAudio():
                yield on.SendMessage(event.data)
            case on.ContextEnded():
                yield from self._end(event)
            case on.AllContextsEnded():
                yield on.CloseConnection()

    def send_error(self, error: ErrorInfo, close: int | None) -> Iterator[on.DialectCommand]:
        yield self._error(error)
        if close is not None:
            yield on.CloseConnection(
                CLOSES.get(close, close), error.message.encode()[:MAX_REASON_BYTES].decode(errors="ignore")
            )

    @classmethod
    def reject_handshake(cls, error: ErrorInfo, status: int) -> tuple[dict[str, Any], dict[str, str]]:
        return refusal(error)

    def _append(self, text: str) -> Iterator[on.DialectCommand]:
        context = self._open_turn
        if context is None:
            if not text.strip():
                return
            context = yield from self._begin_turn()
        yield on.AppendText(context, text)

    def _flush(self) -> Iterator[on.DialectCommand]:
        """Also a flush of nothing is answered, in its turn."""
        context = self._open_turn
        if context is None:
            context = yield from self._begin_turn()
        self._turns[context].flushed = True
        yield on.EndContext(context)

    def _clear(self) -> Iterator[on.DialectCommand]:
        for context, turn in self._turns.items():
            turn.cleared = True
            yield on.CancelContext(context)
        yield self._answer("Cleared")

    def _finish(self) -> Iterator[on.DialectCommand]:
        context = self._open_turn
        if context is not None:
            yield on.EndContext(context)
        yield on.FinishContexts()

    @property
    def _open_turn(self) -> str | None:
        """The turn that text goes to."""
        context, turn = next(reversed(self._turns.items()), (None, None))
        return None if turn is None or turn.flushed or turn.cleared else context

    def _begin_turn(self) -> Generator[on.DialectCommand, None, str]:
        context = str(self._num_turns)
        self._num_turns += 1
        self._turns[context] = DeepgramTurn()
        assert self.options is not None
        yield on.OpenContext(context, self.options)
        return context

    def _end(self, event: on.ContextEnded) -> Iterator[on.DialectCommand]:
        turn = self._turns.pop(event.context)
        if turn.cleared:
            return
        if event.error is not None and event.error.code != "text_timeout":
            yield self._error(event.error)
        if turn.flushed:
            yield self._answer("Flushed")

    def _answer(self, kind: str) -> on.SendMessage:
        number, self._num_answers = self._num_answers, self._num_answers + 1
        return self._send(kind, sequence_id=number)

    def _error(self, error: ErrorInfo) -> on.SendMessage:
        told = {"description": error.message, "code": error.code}
        return self._send("Error", **told, err_msg=error.message, err_code=error.code)

    def _send(self, kind: str, **fields: Any) -> on.SendMessage:
        return on.SendMessage(dump(type=kind, **fields))
