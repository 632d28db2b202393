"""ElevenLabs' sockets: ``stream-input``, which speaks one text, and ``multi-stream-input``, which speaks many."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from realtime.protocol.dialects import base as on
from realtime.protocol.dialects.elevenlabs_times import alignment, characters
from realtime.protocol.dialects.elevenlabs_words import (
    CLOSES,
    Credentials,
    VoiceSettings,
    error_answer,
    error_fields,
    inactivity_s,
    reason,
    wish_of,
)
from realtime.protocol.dialects.parsing import dump, is_true, parse_json, require_context_id, text_only
from realtime.protocol.events import ErrorBody

DEFAULT_CONTEXT = "default"
DEFAULT_INACTIVITY_S, MAX_INACTIVITY_S = 20, 180


class Said(Credentials):
    """One message of a client, of either socket; what is not named here has no counterpart."""

    text: str | None = None
    context_id: str | None = None
    camel_context_id: str | None = msgspec.field(default=None, name="contextId")
    flush: bool | None = None
    close_context: bool | None = None
    close_socket: bool | None = None
    voice_settings: VoiceSettings | None = None


@dataclass(slots=True)
class Spoken:
    """What is known of a context."""

    wish: on.Wish
    last_text: str = ""
    flushed: bool = False
    """The last that was said was a flush without text: a close means a normal end, and no interruption."""
    closed: bool = False
    base_ms: float = 0.0
    """Where the times of the next message count from."""
    words: list[on.TimedWord] = field(default_factory=list)
    """Not told yet: they go with the next audio."""


class MultiStream(on.Dialect):
    """Contexts by their ids, at once."""

    def __init__(self, handshake: on.Handshake) -> None:
        super().__init__(handshake)
        self.wish = wish_of(handshake.query, handshake.path.get("voice_id"))
        self.context_timeout_s = inactivity_s(handshake.query, DEFAULT_INACTIVITY_S, MAX_INACTIVITY_S)
        self._spaces = is_true(handshake.query.get("auto_mode"))
        """Clients send whole sentences, which need a space between them."""
        self._absolute = is_true(handshake.query.get("sync_alignment"))
        """Times run over the whole context; else they begin anew with every message."""
        self._contexts: dict[str, Spoken] = {}

    def receive(self, message: on.Message) -> Iterator[on.Intent]:
        said = parse_json(text_only(message), Said)
        if said.key:
            yield on.Authenticate(said.key)
        if said.close_socket:
            yield from self._close_all()
            return
        context = require_context_id(said.context_id or said.camel_context_id or DEFAULT_CONTEXT)
        if said.close_context:
            yield from self._close_context(context)
        else:
            yield from self._write(context, said)

    def tell(self, event: on.Event) -> Iterator[on.Intent]:
        match event:
            case on.Silent():
                yield on.Close()
            case on.Idle():
                yield from self._expire(event.context)
            case on.Words() if event.context in self._contexts:
                self._contexts[event.context].words += event.words
            case on.Audio() if event.context in self._contexts:
                yield self._send(event.context, base64.b64encode(event.data).decode())
            case on.Flushed() if event.context in self._contexts:
                yield from self._send_words(event.context)
            case on.Ended():
                yield from self._end(event)

    def fail(self, error: ErrorBody, close: int | None) -> Iterator[on.Intent]:
        code = CLOSES.get(close, close) if close is not None else 1008
        yield on.Send(dump(**error_fields(error, code)))
        if close is not None:
            yield on.Close(code, reason(error.message))

    @classmethod
    def refuse(cls, error: ErrorBody, status: int) -> tuple[dict[str, Any], dict[str, str]]:
        return error_answer(error), {}

    def _write(self, context: str, said: Said) -> Iterator[on.Intent]:
        text, flush = said.text or "", bool(said.flush)
        spoken = self._contexts.get(context)
        if spoken is None:
            if not text:
                return  # a sign of life, or a flush of nothing
            yield from self._open(context, said)
            spoken = self._contexts[context]
        if spoken.closed:
            yield from self._complain_of_text_after_the_end(context, text)
            return
        yield on.Append(context, self._with_space(spoken, text))
        spoken.last_text = text or spoken.last_text
        if flush:
            yield on.Flush(context)
        if flush or text.strip():
            spoken.flushed = flush and not text.strip()

    def _open(self, context: str, said: Said) -> Iterator[on.Intent]:
        assert self.wish is not None
        speed = said.voice_settings.speed if said.voice_settings else None
        wish = self.wish if speed is None else replace(self.wish, speed=speed)
        self._contexts[context] = Spoken(wish)
        yield on.Open(context, wish)

    def _with_space(self, spoken: Spoken, text: str) -> str:
        apart = spoken.last_text[-1:].isspace() or text[:1].isspace()
        return f" {text}" if self._spaces and text and spoken.last_text and not apart else text

    def _complain_of_text_after_the_end(self, context: str, text: str) -> Iterator[on.Intent]:
        if text.strip():
            error = ErrorBody(code="text_closed", message="text after the close of its context")
            yield on.Send(dump(**error_fields(error, 1008), **self._named(context)))

    def _close_context(self, context: str) -> Iterator[on.Intent]:
        spoken = self._contexts.get(context)
        if spoken is None:
            return
        ends = spoken.flushed and not spoken.closed
        spoken.closed = True
        yield on.End(context) if ends else on.Cancel(context)

    def _close_all(self) -> Iterator[on.Intent]:
        for context, spoken in self._contexts.items():
            if not spoken.closed:
                spoken.closed = True
                yield on.End(context)
        yield on.Finish()

    def _expire(self, context: str) -> Iterator[on.Intent]:
        spoken = self._contexts.get(context)
        if spoken is not None and not spoken.closed:
            spoken.closed = True
            yield on.End(context)

    def _end(self, event: on.Ended) -> Iterator[on.Intent]:
        if event.context not in self._contexts:
            return
        if event.error is not None and event.error.code != "text_timeout":
            yield on.Send(dump(**error_fields(event.error, 1008), **self._named(event.context)))
        yield from self._send_words(event.context)
        del self._contexts[event.context]
        yield on.Send(dump(audio=None, isFinal=True, **self._named(event.context)))

    def _send_words(self, context: str) -> Iterator[on.Intent]:
        if self._contexts[context].words:
            yield self._send(context, None)

    def _send(self, context: str, audio: str | None) -> on.Send:
        spoken = self._contexts[context]
        words, spoken.words = spoken.words, []
        told = alignment(characters(words), spoken.base_ms)
        normalized = alignment(characters(words, spoken=True), spoken.base_ms)
        if words and not self._absolute:
            spoken.base_ms = words[-1].end_ms
        return on.Send(
            dump(audio=audio, isFinal=None, alignment=told, normalizedAlignment=normalized, **self._named(context))
        )

    def _named(self, context: str) -> dict[str, str]:
        """Some clients read one spelling, some the other."""
        return {"contextId": context, "context_id": context}


class StreamInput(MultiStream):
    """One text, ended by an empty one; then the server closes."""

    def _write(self, context: str, said: Said) -> Iterator[on.Intent]:
        if said.text != "":
            yield from super()._write(DEFAULT_CONTEXT, said)
            return
        if DEFAULT_CONTEXT not in self._contexts:
            yield from self._open(DEFAULT_CONTEXT, said)
        yield from self._close_context(DEFAULT_CONTEXT)

    def _close_context(self, context: str) -> Iterator[on.Intent]:
        spoken = self._contexts.get(DEFAULT_CONTEXT)
        if spoken is None:
            yield on.Close()
        elif not spoken.closed:
            spoken.closed = True
            yield on.End(DEFAULT_CONTEXT)

    def _close_all(self) -> Iterator[on.Intent]:
        return self._close_context(DEFAULT_CONTEXT)

    def _complain_of_text_after_the_end(self, context: str, text: str) -> Iterator[on.Intent]:
        return iter(())

    def _expire(self, context: str) -> Iterator[on.Intent]:
        spoken = self._contexts.get(context)
        if spoken is not None and not spoken.closed:
            yield from self._time_out()

    def _time_out(self) -> Iterator[on.Intent]:
        """The last that is said."""
        self._contexts.clear()
        message = f"Have not received a new text input within the timeout of {self.context_timeout_s:.0f} seconds."
        yield on.Send(dump(message=message, error="input_timeout_exceeded", code=1008))
        yield on.Close(1008, message)

    def _end(self, event: on.Ended) -> Iterator[on.Intent]:
        if event.context not in self._contexts:
            return
        if event.error is None:
            yield from super()._end(event)
            yield on.Close()
        elif event.error.code == "text_timeout":
            yield from self._time_out()
        else:
            yield from super()._end(event)
            yield on.Close(1008, reason(event.error.message))

    def _named(self, context: str) -> dict[str, str]:
        return {}
