"""ElevenLabs over HTTP: a text in, its audio out as it is spoken, plain or with times as JSON lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from msgspec import Struct

from engine.api import ErrorInfo
from realtime.protocol import model
from realtime.protocol.dialects.base import HttpDialect
from realtime.protocol.dialects.elevenlabs_common import (
    DictionaryLocator,
    ElevenLabsVoiceSettings,
    alignment_s,
    audio_tags,
    characters,
    error_answer,
    lexicon_names,
    parse_options,
)
from realtime.protocol.dialects.parsing import dump, encode_base64, parse_json

MEDIA_TYPES = {
    "mp3": "audio/mpeg",
    "pcm_s16le": "audio/pcm",
    "wav": "audio/wav",
    "mulaw": "audio/basic",
    "alaw": "audio/x-alaw-basic",
    "ogg_opus": "audio/ogg",
}


class ElevenLabsBody(Struct):
    text: str
    model_id: str | None = None
    language_code: str | None = None
    seed: int | None = None
    voice_settings: ElevenLabsVoiceSettings | None = None
    pronunciation_dictionary_locators: list[DictionaryLocator] | None = None


class ElevenLabsStream(HttpDialect):
    """``/v1/text-to-speech/{voice_id}`` and ``.../stream``: bytes of the format that the query asks for."""

    has_times = False

    def __init__(self, handshake: model.ClientHandshake) -> None:
        super().__init__(handshake)
        self.options: model.SpeechOptions = replace(
            parse_options(handshake.query, handshake.path.get("voice_id")), word_times=self.has_times
        )
        self.media_type = MEDIA_TYPES[self.options.format.encoding]

    def headers(self) -> dict[str, str]:
        return {"request-id": self.handshake.request_id}

    def receive_message(self, message: model.Message) -> Iterator[model.DialectCommand]:
        body = parse_json(message, ElevenLabsBody)
        yield from self.start_response(self._build_options(body), body.text)

    @classmethod
    def reject_handshake(cls, error: ErrorInfo, status: int) -> tuple[dict[str, Any], dict[str, str]]:
        return error_answer(error), {}

    def _build_options(self, body: ElevenLabsBody) -> model.SpeechOptions:
        given = {"language": body.language_code, "seed": body.seed}
        given["speed"] = body.voice_settings.speed if body.voice_settings else None  # type: ignore[assignment]
        options = replace(
            self.options,
            inline_forms=audio_tags(body.model_id),
            lexicons=lexicon_names(body.pronunciation_dictionary_locators),
        )
        return replace(options, **{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]


class ElevenLabsTimestampStream(ElevenLabsStream):
    """``.../stream/with-timestamps``: a JSON object a line, audio and the times of characters in it."""

    has_times = True

    def __init__(self, handshake: model.ClientHandshake) -> None:
        super().__init__(handshake)
        self.media_type = "application/x-ndjson"
        self._words: list[model.TimedWord] = []

    def send_event(self, event: model.DialectEvent) -> Iterator[model.DialectCommand]:
        match event:
            case model.ContextWords():
                self._words += event.words
            case model.ContextAudio():
                yield self._line(event.data)
            case _:
                if isinstance(event, model.ContextEnded) and event.error is None and self._words:
                    yield self._line(b"")
                yield from super().send_event(event)

    def _line(self, audio: bytes) -> model.SendMessage:
        line = dump(audio_base64=encode_base64(audio), **self._pop_times())
        return model.SendMessage(line + "\n")

    def _pop_times(self) -> dict[str, Any]:
        words, self._words = self._words, []
        return {
            "alignment": alignment_s(characters(words)),
            "normalized_alignment": alignment_s(characters(words, spoken=True)),
        }


class WithTimestamps(ElevenLabsTimestampStream):
    """``.../with-timestamps``: one JSON document. It is sent as it is spoken, the times last, so that none is held."""

    def __init__(self, handshake: model.ClientHandshake) -> None:
        super().__init__(handshake)
        self.media_type = "application/json"
        self._head = '{"audio_base64":"'
        self._remainder = b""
        # Remainder of less than three bytes, which base64 cannot encode yet.

    def send_event(self, event: model.DialectEvent) -> Iterator[model.DialectCommand]:
        if isinstance(event, model.ContextEnded) and event.error is None:
            last = encode_base64(self._remainder)
            times = dump(**self._pop_times()).removeprefix("{")
            yield model.SendMessage(f'{self._pop_head()}{last}",{times}')
        yield from super().send_event(event)

    def _line(self, audio: bytes) -> model.SendMessage:
        audio = self._remainder + audio
        whole = len(audio) - len(audio) % 3
        self._remainder = audio[whole:]
        return model.SendMessage(self._pop_head() + encode_base64(audio[:whole]))

    def _pop_head(self) -> str:
        head, self._head = self._head, ""
        return head
