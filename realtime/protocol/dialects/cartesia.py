"""Cartesia's socket: contexts by their ids, at once, opened by their first request and closed by the last."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from engine.api import ErrorInfo
from realtime.errors import RemoteProtocolError
from realtime.protocol import model
from realtime.protocol.dialects.base import Dialect
from realtime.protocol.dialects.cartesia_common import GenerationRequest, error_fields, word_timestamps
from realtime.protocol.dialects.parsing import dump, parse_json, require_context_id, text_only
from realtime.protocol.dialects.sentence_spacing import with_sentence_space

RUNNING, FINISHED = 206, 200


@dataclass(slots=True)
class CartesiaContext:
    normalized: bool = False
    closed: bool = False
    # Not a word more: clients take what comes of an unknown context for the answer to another.
    cancelled: bool = False
    num_flushed: int = 0
    last_text: str = ""


class CartesiaDialect(Dialect):
    forgiving = True
    context_timeout_s = 60.0

    def __init__(self, handshake: model.ClientHandshake) -> None:
        super().__init__(handshake)
        self._contexts: dict[str, CartesiaContext] = {}
        self._unnamed = itertools.count()

    def receive_message(self, message: model.Message) -> Iterator[model.DialectCommand]:
        asked = parse_json(text_only(message), GenerationRequest)
        context = require_context_id(asked.context_id or f"{self.handshake.request_id}-{next(self._unnamed)}")
        if asked.cancel:
            yield from self._cancel(context)
        else:
            yield from self._generate(context, asked)

    def send_event(self, event: model.DialectEvent) -> Iterator[model.DialectCommand]:
        match event:
            case model.ContextAudio() if event.context in self._contexts:
                data = base64.b64encode(event.data).decode()
                flush_id = self._contexts[event.context].num_flushed + 1
                yield self._send("chunk", event.context, data=data, step_time=0.0, flush_id=flush_id)
            case model.ContextWords() if event.context in self._contexts:
                words = word_timestamps(event.words, self._contexts[event.context].normalized)
                yield self._send("timestamps", event.context, word_timestamps=words)
            case model.ContextFlushed() if event.context in self._contexts:
                spoken = self._contexts[event.context]
                spoken.num_flushed += 1
                yield self._send("flush_done", event.context, flush_done=True, flush_id=spoken.num_flushed)
            case model.ContextIdle():
                yield from self._expire(event.context)
            case model.ContextEnded():
                yield from self._end(event)

    def send_error(self, error: ErrorInfo, close: int | None) -> Iterator[model.DialectCommand]:
        told = error_fields(error, self.handshake.request_id)
        yield model.SendMessage(dump(type="error", context_id=None, done=True, **told))

    @classmethod
    def reject_handshake(cls, error: ErrorInfo, status: int) -> tuple[dict[str, Any], dict[str, str]]:
        return error_fields(error, ""), {}

    def _generate(self, context: str, asked: GenerationRequest) -> Iterator[model.DialectCommand]:
        spoken = self._contexts.get(context)
        if spoken is None:
            try:
                wish = asked.to_options(("raw",))
            except RemoteProtocolError as error:
                yield replace(self._error(context, error.info), is_refusal=True)
                return
            spoken = self._contexts[context] = CartesiaContext(bool(asked.use_normalized_timestamps))
            yield model.OpenContext(context, wish)
        if spoken.closed:
            closed = ErrorInfo("text_closed", "the context was closed by continue: false or a cancel")
            yield replace(self._error(context, closed, done=False), is_refusal=True)
            return
        yield from self._write(context, spoken, asked)

    def _write(self, context: str, spoken: CartesiaContext, asked: GenerationRequest) -> Iterator[model.DialectCommand]:
        text = with_sentence_space(spoken.last_text, asked.transcript or "")
        spoken.last_text, spoken.closed = text or spoken.last_text, not asked.continues
        if asked.flush:
            yield model.AppendText(context, text)
            yield model.FlushContext(context)
            if spoken.closed:
                yield model.EndContext(context)
        else:
            yield model.AppendText(context, text, last=spoken.closed)

    def _cancel(self, context: str) -> Iterator[model.DialectCommand]:
        spoken = self._contexts.get(context)
        if spoken is not None:
            spoken.closed = spoken.cancelled = True
            yield model.CancelContext(context)

    def _expire(self, context: str) -> Iterator[model.DialectCommand]:
        spoken = self._contexts.get(context)
        if spoken is not None and not spoken.closed:
            spoken.closed = True
            yield model.EndContext(context)

    def _end(self, event: model.ContextEnded) -> Iterator[model.DialectCommand]:
        spoken = self._contexts.pop(event.context, None)
        if spoken is None or spoken.cancelled:
            return
        if event.error is not None and event.error.code != "text_timeout":
            yield self._error(event.context, event.error)
        else:
            yield model.SendMessage(dump(type="done", context_id=event.context, done=True, status_code=FINISHED))

    def _send(self, kind: str, context: str, **fields: Any) -> model.SendMessage:
        return model.SendMessage(dump(type=kind, context_id=context, done=False, status_code=RUNNING, **fields))

    def _error(self, context: str, error: ErrorInfo, done: bool = True) -> model.SendMessage:
        told = error_fields(error, self.handshake.request_id)
        return model.SendMessage(dump(type="error", context_id=context, done=done, **told))
