"""ElevenLabs' sockets: ``stream-input``, which speaks one text, and ``multi-stream-input``, which speaks many.

The base is shared with the sockets of dialogues: contexts by their ids, or a single one; how they open, end, fail
and idle.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from engine.api import ErrorInfo
from realtime.protocol import model
from realtime.protocol.dialects.base import Dialect
from realtime.protocol.dialects.elevenlabs_common import (
    CLOSES,
    DictionaryLocator,
    ElevenLabsCredentials,
    ElevenLabsVoiceSettings,
    alignment,
    characters,
    error_answer,
    error_fields,
    inactivity_s,
    lexicon_names,
    parse_options,
)
from realtime.protocol.dialects.parsing import (
    close_reason,
    dump,
    encode_base64,
    is_true,
    parse_json,
    require_context_id,
    text_only,
)

DEFAULT_CONTEXT = "default"
DEFAULT_INACTIVITY_S, MAX_INACTIVITY_S = 20, 180


class DialogueLine(Struct):
    """A line of a dialogue."""

    text: str = ""
    voice_id: str | None = None
    new_turn: bool | None = None


class ElevenLabsMessage(ElevenLabsCredentials):
    """A client message of any of these sockets; other fields are ignored."""

    text: str | None = None
    voices: list[str] | None = None
    inputs: list[DialogueLine] | None = None
    context_id: str | None = None
    camel_context_id: str | None = msgspec.field(default=None, name="contextId")
    flush: bool | None = None
    close_context: bool | None = None
    close_socket: bool | None = None
    voice_settings: ElevenLabsVoiceSettings | None = None
    pronunciation_dictionary_locators: list[DictionaryLocator] | None = None

    def over(self, options: model.SpeechOptions) -> model.SpeechOptions:
        """Return the options of a context that the message opens."""
        speed = self.voice_settings.speed if self.voice_settings else None
        lexicons = lexicon_names(self.pronunciation_dictionary_locators)
        return replace(options, speed=speed or options.speed, lexicons=lexicons)


@dataclass(slots=True, kw_only=True)
class ElevenLabsContext:
    """State of a context."""

    name: str
    last_text: str = ""
    # The last that was said was a flush without text: a close means a normal end, and no interruption.
    flushed: bool = False
    closed: bool = False
    # Unsent words: they go with the next audio.
    words: list[model.TimedWord] = field(default_factory=list)


S = TypeVar("S", bound=ElevenLabsContext)


class ElevenLabsSocket(Dialect, Generic[S]):
    """Contexts by their ids, at once."""

    # One text, and with it the connection ends.
    single = False

    def __init__(self, handshake: model.ClientHandshake) -> None:
        super().__init__(handshake)
        self._contexts: dict[str, S] = {}

    def receive_message(self, message: model.Message) -> Iterator[model.DialectCommand]:
        parsed = parse_json(text_only(message), ElevenLabsMessage)
        if parsed.key:
            yield model.AuthenticateKey(parsed.key)
        if parsed.close_socket:
            yield from self._close_all()
            return
        name = DEFAULT_CONTEXT if self.single else parsed.context_id or parsed.camel_context_id or DEFAULT_CONTEXT
        if parsed.close_context:
            yield from self._close_context(require_context_id(name))
        else:
            yield from self._write(require_context_id(name), parsed)

    def send_event(self, event: model.DialectEvent) -> Iterator[model.DialectCommand]:
        if isinstance(event, model.AllContextsEnded):
            yield model.CloseConnection()
        elif (spoken := self._contexts.get(event.context)) is not None:
            yield from self._dispatch_event(spoken, event)

    def send_error(self, error: ErrorInfo, close: int | None) -> Iterator[model.DialectCommand]:
        code = CLOSES.get(close, close) if close is not None else 1008
        yield model.SendMessage(dump(**error_fields(error, code)))
        if close is not None:
            yield model.CloseConnection(code, close_reason(error.message))

    @classmethod
    def reject_handshake(cls, error: ErrorInfo, status: int) -> tuple[dict[str, Any], dict[str, str]]:
        return error_answer(error), {}

    # --- what a client says

    @abstractmethod
    def _begins(self, parsed: ElevenLabsMessage) -> bool:
        """Return whether the message opens a context; otherwise it is a keep-alive or an empty flush."""

    @abstractmethod
    def _open(self, name: str, parsed: ElevenLabsMessage) -> tuple[S, model.OpenContext]: ...

    @abstractmethod
    def _append(self, spoken: S, parsed: ElevenLabsMessage) -> Iterator[model.DialectCommand]:
        """Append the text of a message, or keep the context alive; a flush is handled elsewhere."""

    def _write(self, name: str, parsed: ElevenLabsMessage) -> Iterator[model.DialectCommand]:
        spoken = self._contexts.get(name)
        if spoken is None:
            if not self._begins(parsed):
                return
            spoken, opening = self._open(name, parsed)
            self._contexts[name] = spoken
            yield opening
        has_text = _has_text(parsed)
        if spoken.closed:
            if has_text and not self.single:
                error = ErrorInfo(code="text_closed", message="text after the close of its context")
                yield replace(self._error(spoken, error), refused_code=error.code)
            return
        yield from self._append(spoken, parsed)
        if parsed.flush:
            yield from self._flush(spoken)
        if parsed.flush or has_text:
            spoken.flushed = not has_text

    def _flush(self, spoken: S) -> Iterator[model.DialectCommand]:
        yield model.FlushContext(spoken.name)

    def _close_context(self, name: str) -> Iterator[model.DialectCommand]:
        spoken = self._contexts.get(name)
        if spoken is None:
            return
        ends = spoken.flushed and not spoken.closed
        spoken.closed = True
        yield model.EndContext(spoken.name) if ends else model.CancelContext(spoken.name)

    def _close_all(self) -> Iterator[model.DialectCommand]:
        if self.single and not self._contexts:
            yield model.SendMessage(dump(**self._final()))
        for spoken in self._contexts.values():
            yield from self._end_text(spoken)
        yield model.FinishContexts()

    def _end_text(self, spoken: S) -> Iterator[model.DialectCommand]:
        if not spoken.closed:
            spoken.closed = True
            yield model.EndContext(spoken.name)

    # --- what becomes of it

    @abstractmethod
    def _send_audio(self, spoken: S, audio: model.ContextAudio) -> model.SendMessage: ...

    @abstractmethod
    def _send_words(self, spoken: S) -> model.SendMessage:
        """Send words that came after their audio."""

    @abstractmethod
    def _final(self) -> dict[str, Any]:
        """The last message of a context, without its id."""

    @abstractmethod
    def _named(self, spoken: S) -> dict[str, str]:
        """The id of a context, as it stands in messages."""

    def _dispatch_event(self, spoken: S, event: model.DialectEvent) -> Iterator[model.DialectCommand]:
        match event:
            case model.ContextWords():
                spoken.words += event.words
            case model.ContextAudio():
                yield self._send_audio(spoken, event)
            case model.ContextFlushed():
                yield from self._send_flushed(spoken)
            case model.ContextIdle():
                yield from self._expire(spoken)
            case model.ContextEnded():
                yield from self._send_end(spoken, event)

    def _send_flushed(self, spoken: S) -> Iterator[model.DialectCommand]:
        yield from self._late_words(spoken)

    def _late_words(self, spoken: S) -> Iterator[model.DialectCommand]:
        if spoken.words:
            yield self._send_words(spoken)

    def _expire(self, spoken: S) -> Iterator[model.DialectCommand]:
        if self.single and not spoken.closed:
            yield from self._time_out()
        else:
            yield from self._end_text(spoken)

    def _send_end(self, spoken: S, event: model.ContextEnded) -> Iterator[model.DialectCommand]:
        error = event.error
        timed_out = error is not None and error.code == "text_timeout"
        if timed_out and self.single:
            yield from self._time_out()
            return
        if error is not None and not timed_out:
            yield self._error(spoken, error)
        yield from self._late_words(spoken)
        del self._contexts[spoken.name]
        yield model.SendMessage(dump(**self._final(), **self._named_if_many(spoken)))
        if self.single:
            yield model.CloseConnection() if error is None else model.CloseConnection(1008, close_reason(error.message))

    def _time_out(self) -> Iterator[model.DialectCommand]:
        """The last that is said."""
        self._contexts.clear()
        message = f"Have not received a new text input within the timeout of {self.context_timeout_s:.0f} seconds."
        yield model.SendMessage(dump(message=message, error="input_timeout_exceeded", code=1008))
        yield model.CloseConnection(1008, message)

    def _error(self, spoken: S, error: ErrorInfo) -> model.SendMessage:
        return model.SendMessage(dump(**error_fields(error, 1008), **self._named_if_many(spoken)))

    def _named_if_many(self, spoken: S) -> dict[str, str]:
        return {} if self.single else self._named(spoken)


def _has_text(parsed: ElevenLabsMessage) -> bool:
    return bool((parsed.text or "").strip()) or any(line.text.strip() for line in parsed.inputs or ())


@dataclass(slots=True, kw_only=True)
class ElevenLabsTextContext(ElevenLabsContext):
    # Origin of the times of the next message.
    base_ms: float = 0.0


class ElevenLabsMultiStream(ElevenLabsSocket[ElevenLabsTextContext]):
    def __init__(self, handshake: model.ClientHandshake) -> None:
        super().__init__(handshake)
        self.options: model.SpeechOptions = parse_options(handshake.query, handshake.path.get("voice_id"))
        self.context_timeout_s = inactivity_s(handshake.query, DEFAULT_INACTIVITY_S, MAX_INACTIVITY_S)
        # Clients send whole sentences, which need a space between them.
        self._spaces = is_true(handshake.query.get("auto_mode"))
        # Times run over the whole context; else they begin anew with every message.
        self._absolute = is_true(handshake.query.get("sync_alignment"))

    def _begins(self, parsed: ElevenLabsMessage) -> bool:
        return bool(parsed.text)

    def _open(self, name: str, parsed: ElevenLabsMessage) -> tuple[ElevenLabsTextContext, model.OpenContext]:
        return ElevenLabsTextContext(name=name), model.OpenContext(name, parsed.over(self.options))

    def _append(self, spoken: ElevenLabsTextContext, parsed: ElevenLabsMessage) -> Iterator[model.DialectCommand]:
        text = parsed.text or ""
        yield model.AppendText(spoken.name, self._with_space(spoken, text))
        spoken.last_text = text or spoken.last_text

    def _with_space(self, spoken: ElevenLabsTextContext, text: str) -> str:
        apart = spoken.last_text[-1:].isspace() or text[:1].isspace()
        return f" {text}" if self._spaces and text and spoken.last_text and not apart else text

    def _send_audio(self, spoken: ElevenLabsTextContext, audio: model.ContextAudio) -> model.SendMessage:
        return self._send(spoken, encode_base64(audio.data))

    def _send_words(self, spoken: ElevenLabsTextContext) -> model.SendMessage:
        return self._send(spoken, None)

    def _send(self, spoken: ElevenLabsTextContext, audio: str | None) -> model.SendMessage:
        words, spoken.words = spoken.words, []
        fields = alignment(characters(words), spoken.base_ms)
        normalized = alignment(characters(words, spoken=True), spoken.base_ms)
        if words and not self._absolute:
            spoken.base_ms = words[-1].end_ms
        named = self._named_if_many(spoken)
        return model.SendMessage(
            dump(audio=audio, isFinal=None, alignment=fields, normalizedAlignment=normalized, **named)
        )

    def _final(self) -> dict[str, Any]:
        return {"audio": None, "isFinal": True}

    def _named(self, spoken: ElevenLabsTextContext) -> dict[str, str]:
        """Some clients read one spelling, some the other."""
        return {"contextId": spoken.name, "context_id": spoken.name}


class ElevenLabsStreamInput(ElevenLabsMultiStream):
    """A single text, ended by an empty one; then the server closes."""

    single = True

    def _begins(self, parsed: ElevenLabsMessage) -> bool:
        return parsed.text is not None

    def _append(self, spoken: ElevenLabsTextContext, parsed: ElevenLabsMessage) -> Iterator[model.DialectCommand]:
        if parsed.text == "":
            yield from self._end_text(spoken)
        else:
            yield from super()._append(spoken, parsed)

    def _close_context(self, name: str) -> Iterator[model.DialectCommand]:
        """Close the connection, which has one context."""
        return self._close_all()
