"""Cartesia over HTTP: ``/tts/bytes``, a file as it is spoken, and ``/tts/sse``, the socket's messages as events."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from engine.api import ErrorInfo
from realtime.protocol import model
from realtime.protocol.dialects.cartesia_common import GenerationRequest, error_fields, word_timestamps
from realtime.protocol.dialects.http_dialect import HttpDialect
from realtime.protocol.dialects.parsing import dump, parse_json

MEDIA_TYPES = {"wav": "audio/wav", "mp3": "audio/mpeg", "mulaw": "audio/basic", "alaw": "audio/x-alaw-basic"}


class CartesiaBytes(HttpDialect):
    containers: tuple[str, ...] = ("raw", "wav", "mp3")

    def receive_message(self, message: model.Message) -> Iterator[model.DialectCommand]:
        asked = parse_json(message, GenerationRequest)
        wish = asked.to_options(self.containers)
        self._prepare(asked, wish)
        yield from self.start_response(wish, asked.transcript or "", "transcript")

    def _prepare(self, asked: GenerationRequest, wish: model.SpeechOptions) -> None:
        self.media_type = MEDIA_TYPES.get(wish.format.encoding, "audio/pcm")

    @classmethod
    def reject_handshake(cls, error: ErrorInfo, status: int) -> tuple[dict[str, Any], dict[str, str]]:
        return error_fields(error, ""), {}


class CartesiaSse(CartesiaBytes):
    containers = ("raw",)
    media_type = "text/event-stream"

    _begun = False

    def _prepare(self, asked: GenerationRequest, wish: model.SpeechOptions) -> None:
        self._context_id = asked.context_id
        self._normalized = bool(asked.use_normalized_timestamps)

    def send_event(self, event: model.DialectEvent) -> Iterator[model.DialectCommand]:
        match event:
            case model.ContextAudio():
                data = base64.b64encode(event.data).decode()
                yield self._event("chunk", data=data, done=False, status_code=206, step_time=0.0)
            case model.ContextWords():
                words = word_timestamps(event.words, self._normalized)
                yield self._event("timestamps", word_timestamps=words, done=False, status_code=206)
            case model.ContextEnded(error=None):
                yield self._event("done", done=True, status_code=200)
                yield model.CloseConnection()
            case model.ContextEnded(error=ErrorInfo() as error) if self._begun:
                yield self._event("error", done=True, **error_fields(error, self.handshake.request_id))
                yield model.CloseConnection()
            case _:
                yield from super().send_event(event)

    def _event(self, kind: str, **fields: Any) -> model.SendMessage:
        self._begun = True
        data = dump(type=kind, context_id=self._context_id, **fields)
        return model.SendMessage(f"event: {kind}\ndata: {data}\n\n")
