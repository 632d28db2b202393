"""Cartesia over HTTP: ``/tts/bytes``, a file as it is spoken, and ``/tts/sse``, the socket's messages as events."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from engine.api import ErrorInfo
from realtime.protocol.dialects import base as on
from realtime.protocol.dialects.cartesia_common import GenerationRequest, error_fields, word_timestamps
from realtime.protocol.dialects.http_dialect import HttpDialect
from realtime.protocol.dialects.parsing import dump, parse_json

MEDIA_TYPES = {"wav": "audio/wav", "mp3": "audio/mpeg", "mulaw": "audio/basic", "alaw": "audio/x-alaw-basic"}


class CartesiaBytes(HttpDialect):
    containers: tuple[str, ...] = ("raw", "wav", "mp3")

    def receive_message(self, message: on.Message) -> Iterator[on.DialectCommand]:
        asked = parse_json(message, GenerationRequest)
        wish = asked.to_options(self.containers)
        self._prepare(asked, wish)
        yield from self.start_response(wish, asked.transcript or "", "transcript")

    def _prepare(self, asked: GenerationRequest, wish: on.SpeechOptions) -> None:
        self.media_type = MEDIA_TYPES.get(wish.format.encoding, "audio/pcm")

    @classmethod
    def reject_handshake(cls, error: ErrorInfo, status: int) -> tuple[dict[str, Any], dict[str, str]]:
        return error_fields(error, ""), {}


class CartesiaSse(CartesiaBytes):
    containers = ("raw",)
    media_type = "text/event-stream"

    _begun = False

    def _prepare(self, asked: GenerationRequest, wish: on.SpeechOptions) -> None:
        self._context_id = asked.context_id
        self._normalized = bool(asked.use_normalized_timestamps)

    def send_event(self, event: on.DialectEvent) -> Iterator[on.DialectCommand]:
        match event:
            case on.ContextAudio():
                data = base64.b64encode(event.data).decode()
                yield self._event("chunk", data=data, done=False, status_code=206, step_time=0.0)
            case on.ContextWords():
                words = word_timestamps(event.words, self._normalized)
                yield self._event("timestamps", word_timestamps=words, done=False, status_code=206)
            case on.ContextEnded(error=None):
                yield self._event("done", done=True, status_code=200)
                yield on.CloseConnection()
            case on.ContextEnded(error=ErrorInfo() as error) if self._begun:
                yield self._event("error", done=True, **error_fields(error, self.handshake.request_id))
                yield on.CloseConnection()
            case _:
                yield from super().send_event(event)

    def _event(self, kind: str, **fields: Any) -> on.SendMessage:
        self._begun = True
        data = dump(type=kind, context_id=self._context_id, **fields)
        return on.SendMessage(f"event: {kind}\ndata: {data}\n\n")
