"""ElevenLabs' text-to-dialogue socket, which its v3 and v4 models speak: contexts as in ``multi-stream-input``, in
snake case. A context is spoken by one voice, the first it names.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import Struct

from realtime.protocol.dialects import base as on
from realtime.protocol.dialects.elevenlabs_times import Char, characters, snake_alignment
from realtime.protocol.dialects.elevenlabs_words import CLOSES, Credentials, error_answer, error_fields, reason, wish_of
from realtime.protocol.dialects.parsing import dump, is_true, parse_json, require_context_id, text_only
from realtime.protocol.events import ErrorBody

DEFAULT_CONTEXT = "default"
IDLE_S = 20.0


class Input(Struct):
    text: str = ""
    voice_id: str | None = None


class Said(Credentials):
    context_id: str | None = None
    voices: list[str] | None = None
    inputs: list[Input] | None = None
    flush: bool | None = None
    close_context: bool | None = None
    close_socket: bool | None = None
    keep_alive: bool | None = None


@dataclass(slots=True)
class Spoken:
    last_text: str = ""
    flushed: bool = False
    closed: bool = False
    audio_end_ms: float = 0.0
    """Of what was told."""
    owed_ms: float = 0.0
    """pipecat strips leading spaces, and with them the first message's share of its clock: the second makes up."""
    words: list[on.TimedWord] = field(default_factory=list)


class Dialogue(on.Dialect):
    context_timeout_s = IDLE_S

    def __init__(self, handshake: on.Handshake) -> None:
        super().__init__(handshake)
        self.wish = wish_of(handshake.query, None)
        self._fills = is_true(handshake.query.get("sync_alignment"))
        """Each message tells times for just its audio: clients add these up."""
        self._contexts: dict[str, Spoken] = {}

    def receive(self, message: on.Message) -> Iterator[on.Intent]:
        said = parse_json(text_only(message), Said)
        if said.key:
            yield on.Authenticate(said.key)
        context = require_context_id(said.context_id or DEFAULT_CONTEXT)
        if said.close_socket:
            yield from self._close_all()
        elif said.close_context:
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
                yield self._send(event.context, event.data, event.start_ms, event.end_ms)
            case on.Flushed() if event.context in self._contexts:
                yield from self._send_words(event.context)
                yield on.Send(dump(is_final_audio_for_turn=True, context_id=event.context))
            case on.Ended() if event.context in self._contexts:
                yield from self._end(event)

    def fail(self, error: ErrorBody, close: int | None) -> Iterator[on.Intent]:
        code = CLOSES.get(close, close) if close is not None else 1008
        yield on.Send(dump(**error_fields(error, code), param=error.param))
        if close is not None:
            yield on.Close(code, reason(error.message))

    @classmethod
    def refuse(cls, error: ErrorBody, status: int) -> tuple[dict[str, Any], dict[str, str]]:
        return error_answer(error), {}

    def _write(self, context: str, said: Said) -> Iterator[on.Intent]:
        inputs = said.inputs or []
        spoken = self._contexts.get(context)
        if spoken is None:
            if not (said.voices or inputs):
                return  # a sign of life
            yield from self._open(context, said)
            spoken = self._contexts[context]
        if spoken.closed:
            return
        yield on.Append(context, "".join(_with_space(spoken, part.text) for part in inputs))
        if said.flush:
            yield on.Flush(context)
        says_something = any(part.text.strip() for part in inputs)
        if said.flush or says_something:
            spoken.flushed = not says_something

    def _open(self, context: str, said: Said) -> Iterator[on.Intent]:
        assert self.wish is not None
        named = [*(said.voices or ()), *(part.voice_id for part in said.inputs or () if part.voice_id)]
        self._contexts[context] = Spoken()
        yield on.Open(context, replace(self.wish, voice=named[0] if named else None))

    def _close_context(self, context: str) -> Iterator[on.Intent]:
        spoken = self._contexts.get(context)
        if spoken is not None:
            ends, spoken.closed = spoken.flushed and not spoken.closed, True
            yield on.End(context) if ends else on.Cancel(context)

    def _close_all(self) -> Iterator[on.Intent]:
        for context in self._contexts:
            yield from self._expire(context)
        yield on.Finish()

    def _expire(self, context: str) -> Iterator[on.Intent]:
        spoken = self._contexts.get(context)
        if spoken is not None and not spoken.closed:
            spoken.closed = True
            yield on.End(context)

    def _send(self, context: str, data: bytes, start_ms: float, end_ms: float) -> on.Send:
        spoken = self._contexts[context]
        words, spoken.words = spoken.words, []
        spoken.audio_end_ms = end_ms
        chars = characters(words)
        if self._fills:
            owed_ms, spoken.owed_ms = spoken.owed_ms, 0.0 if start_ms or chars else end_ms
            fill_ms = chars.pop().start_ms if chars and chars[-1].text == " " else start_ms
            chars.append(Char(" ", fill_ms, max(end_ms, fill_ms) + owed_ms))
        audio = base64.b64encode(data).decode() if data else None
        return on.Send(dump(audio=audio, alignment=snake_alignment(chars, start_ms), context_id=context))

    def _send_words(self, context: str) -> Iterator[on.Intent]:
        """Those that came after their audio."""
        spoken = self._contexts[context]
        if spoken.words:
            yield self._send(context, b"", spoken.audio_end_ms, spoken.audio_end_ms)

    def _end(self, event: on.Ended) -> Iterator[on.Intent]:
        if event.error is not None and event.error.code != "text_timeout":
            told = error_fields(event.error, 1008)
            yield on.Send(dump(**told, param=event.error.param, context_id=event.context))
        yield from self._send_words(event.context)
        del self._contexts[event.context]
        yield on.Send(dump(is_final=True, context_id=event.context))


def _with_space(spoken: Spoken, text: str) -> str:
    """Inputs are sentences."""
    before, spoken.last_text = spoken.last_text, text or spoken.last_text
    apart = before[-1:].isspace() or text[:1].isspace()
    return f" {text}" if text and before and not apart else text
