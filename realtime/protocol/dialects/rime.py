"""Rime's ``/ws3``: texts by context ids into one line of speech, JSON out with audio and the times of words.

Times count as the client adds them up. With ``segment`` in the address they run over the whole context (LiveKit takes
them as they are); without it each message of times begins where the last word of the one before ended (pipecat adds up
what it gets).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from msgspec import Struct

from engine.api import ErrorInfo
from realtime.protocol import model
from realtime.protocol.dialects.base import Dialect
from realtime.protocol.dialects.parsing import (
    dump,
    encode_base64,
    integer,
    is_true,
    parse_json,
    require_context_id,
    text_only,
    unsupported_format,
)

DEFAULT_RATE = 24_000
FORMATS = {
    "pcm": ("pcm_s16le", DEFAULT_RATE),
    "wav": ("wav", DEFAULT_RATE),
    "mp3": ("mp3", DEFAULT_RATE),
    "ogg": ("ogg_opus", DEFAULT_RATE),
    "opus": ("ogg_opus", DEFAULT_RATE),
    "mulaw": ("mulaw", 8_000),
    "ulaw": ("mulaw", 8_000),
    "alaw": ("alaw", 8_000),
}
# Parameters of the address that switch them on.
INLINE_FORMS = {"pauseBetweenBrackets": "rime_pause", "phonemizeBetweenBrackets": "rime_phonemes"}


class RimeMessage(Struct, rename={"context_id": "contextId"}):
    text: str | None = None
    context_id: str | None = None
    operation: Literal["flush", "clear", "eos"] | None = None


@dataclass(slots=True)
class RimeGeneration:
    """A generation: the text of a context id up to a flush."""

    context_id: str | None
    ended: bool = False
    cleared: bool = False
    # Times count from here.
    base_ms: float = 0.0


class RimeWs3Dialect(Dialect):
    """Generations are spoken one after the other."""

    forgiving = True

    def __init__(self, handshake: model.ClientHandshake) -> None:
        super().__init__(handshake)
        query = handshake.query
        kind = query.get("audioFormat", "pcm").lower()
        if kind not in FORMATS:
            raise unsupported_format("audioFormat", FORMATS, kind)
        encoding, rate = FORMATS[kind]
        self._absolute = "segment" in query
        self.options: model.SpeechOptions = model.SpeechOptions(
            voice=query.get("speaker"),
            language=query.get("lang", "")[:2] or None,
            format=model.RequestedFormat(encoding, integer(query, "samplingRate") or rate),
            word_times=True,
            inline_forms=tuple(form for name, form in INLINE_FORMS.items() if is_true(query.get(name))),
        )
        self._contexts: dict[str, RimeGeneration] = {}
        self._num_lines = 0

    def receive_message(self, message: model.Message) -> Iterator[model.DialectCommand]:
        parsed = parse_json(text_only(message), RimeMessage)
        if parsed.context_id is not None:
            require_context_id(parsed.context_id)
        if parsed.text or (parsed.text is not None and parsed.context_id):
            yield from self._append(parsed.text, parsed.context_id)
        match parsed.operation:
            case "flush":
                yield from self._flush(parsed.context_id)
            case "clear":
                yield from self._clear(parsed.context_id)
            case "eos":
                yield from self._flush(None)
                yield model.FinishContexts()

    def send_event(self, event: model.DialectEvent) -> Iterator[model.DialectCommand]:
        match event:
            case model.ContextAudio():
                yield self._send("chunk", event.context, data=encode_base64(event.data))
            case model.ContextWords():
                yield self._timestamps(event)
            case model.ContextEnded():
                yield from self._end(event)
            case model.AllContextsEnded():
                yield model.CloseConnection()

    def send_error(self, error: ErrorInfo, close: int | None) -> Iterator[model.DialectCommand]:
        yield model.SendMessage(dump(type="error", message=error.message, contextId=None))

    @classmethod
    def reject_handshake(cls, error: ErrorInfo, status: int) -> tuple[dict[str, Any], dict[str, str]]:
        return {"type": "error", "message": error.message}, {}

    def _open(self, context_id: str | None) -> list[str]:
        """Lines that still take text: those of a context, or all."""
        lines = self._contexts.items()
        return [name for name, line in lines if not line.ended and context_id in (None, line.context_id)]

    def _append(self, text: str, context_id: str | None) -> Iterator[model.DialectCommand]:
        lines = [name for name in self._open(None) if self._contexts[name].context_id == context_id]
        name = lines[-1] if lines else str(self._num_lines)
        if not lines:
            self._num_lines += 1
            self._contexts[name] = RimeGeneration(context_id)
            yield model.OpenContext(name, self.options)
        yield model.AppendText(name, text)

    def _flush(self, context_id: str | None) -> Iterator[model.DialectCommand]:
        for name in self._open(context_id):
            self._contexts[name].ended = True
            yield model.EndContext(name)

    def _clear(self, context_id: str | None) -> Iterator[model.DialectCommand]:
        lines = [name for name, line in self._contexts.items() if context_id in (None, line.context_id)]
        for name in reversed(lines):
            self._contexts[name].ended = self._contexts[name].cleared = True
            yield model.CancelContext(name)

    def _timestamps(self, event: model.ContextWords) -> model.SendMessage:
        line = self._contexts[event.context]
        base_ms = 0.0 if self._absolute else line.base_ms
        line.base_ms = event.words[-1].end_ms
        times = {
            "words": [word.text for word in event.words],
            "start": [round((word.start_ms - base_ms) / 1000, 3) for word in event.words],
            "end": [round((word.end_ms - base_ms) / 1000, 3) for word in event.words],
        }
        return self._send("timestamps", event.context, word_timestamps=times)

    def _end(self, event: model.ContextEnded) -> Iterator[model.DialectCommand]:
        if event.context not in self._contexts:
            return
        if (error := event.failure) is not None:
            yield self._send("error", event.context, message=error.message)
        yield self._send("done", event.context)
        del self._contexts[event.context]

    def _send(self, kind: str, name: str, **fields: Any) -> model.SendMessage:
        return model.SendMessage(dump(type=kind, **fields, contextId=self._contexts[name].context_id))
