"""ElevenLabs' text-to-dialogue sockets, which its v3 and v4 models speak: lines, each by its voice, in one signal.

What a voice says until another takes over is a part of its own; the parts of a context are spoken in turn.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from engine.api import ErrorInfo
from realtime.errors import RemoteProtocolError
from realtime.protocol import model
from realtime.protocol.dialects.elevenlabs import (
    DialogueLine,
    ElevenLabsContext,
    ElevenLabsMessage,
    ElevenLabsSocket,
)
from realtime.protocol.dialects.elevenlabs_common import (
    TimedChar,
    characters,
    parse_options,
    shift_word,
    snake_alignment,
)
from realtime.protocol.dialects.parsing import dump, encode_base64, is_true

IDLE_S = 20.0


@dataclass(slots=True, kw_only=True)
class ElevenLabsDialogueContext(ElevenLabsContext):
    options: model.SpeechOptions
    # Parts that have not ended. Text goes to the last one; the first one is spoken.
    parts: list[str] = field(default_factory=list)
    # The turn that is written has text.
    unflushed: bool = False
    # Start of the part that is spoken.
    offset_ms: float = 0.0
    # End of the audio in the sent alignments.
    audio_end_ms: float = 0.0
    # Error of the first part that failed; the others are dropped.
    failure: ErrorInfo | None = None
    # pipecat strips leading spaces, and with them the first message's share of its clock: the second makes up.
    owed_ms: float = 0.0


class ElevenLabsDialogue(ElevenLabsSocket[ElevenLabsDialogueContext]):
    """``multi-stream-input``, in snake case."""

    context_timeout_s = IDLE_S

    def __init__(self, handshake: model.ClientHandshake) -> None:
        super().__init__(handshake)
        self.options: model.SpeechOptions = parse_options(handshake.query, None)
        if self.options.format.encoding == "wav":
            raise RemoteProtocolError("unsupported_format", "a WAV file has an end, this socket none", "output_format")
        # The times of each message cover its audio only: clients add them up.
        self._fills = is_true(handshake.query.get("sync_alignment"))
        self._numbers = itertools.count()

    @property
    def open_contexts(self) -> Iterator[str]:
        return (part for spoken in self._contexts.values() for part in spoken.parts)

    def _begins(self, parsed: ElevenLabsMessage) -> bool:
        return bool(parsed.voices or parsed.inputs)

    def _open(self, name: str, parsed: ElevenLabsMessage) -> tuple[ElevenLabsDialogueContext, model.OpenContext]:
        named = [*(line.voice_id for line in parsed.inputs or () if line.voice_id), *(parsed.voices or ())]
        options = replace(parsed.over(self.options), voice=named[0] if named else None)
        spoken = ElevenLabsDialogueContext(name=name, options=options)
        return spoken, self._begin_part(spoken)

    def _begin_part(self, spoken: ElevenLabsDialogueContext) -> model.OpenContext:
        part = f"{next(self._numbers)}:{spoken.name}"
        spoken.parts.append(part)
        return model.OpenContext(part, spoken.options, track=spoken.name)

    def _append(self, spoken: ElevenLabsDialogueContext, parsed: ElevenLabsMessage) -> Iterator[model.DialectCommand]:
        for line in parsed.inputs or ():
            yield from self._append_line(spoken, line)
        if not parsed.inputs:
            yield model.AppendText(self._part(spoken), "")

    def _append_line(self, spoken: ElevenLabsDialogueContext, line: DialogueLine) -> Iterator[model.DialectCommand]:
        if line.text.strip():
            if line.voice_id not in (None, spoken.options.voice):
                yield from self._forward(spoken, line.voice_id)
            elif line.new_turn:
                yield from self._end_turn(spoken)
            spoken.unflushed = True
        yield model.AppendText(self._part(spoken), _with_space(spoken, line.text))

    def _forward(self, spoken: ElevenLabsDialogueContext, voice: str | None) -> Iterator[model.DialectCommand]:
        """Another takes over."""
        yield from self._end_turn(spoken)
        yield model.EndContext(self._part(spoken))
        spoken.options = replace(spoken.options, voice=voice)
        spoken.last_text = ""
        yield self._begin_part(spoken)

    def _end_turn(self, spoken: ElevenLabsDialogueContext) -> Iterator[model.DialectCommand]:
        if spoken.unflushed:
            yield from self._flush(spoken)

    def _flush(self, spoken: ElevenLabsDialogueContext) -> Iterator[model.DialectCommand]:
        spoken.unflushed = False
        yield from super()._flush(spoken)

    def _cancel(self, spoken: ElevenLabsDialogueContext) -> Iterator[model.DialectCommand]:
        """Cancel all lines, the last one first, so that none begins to speak."""
        for part in reversed(spoken.parts):
            yield model.CancelContext(part)

    def _part(self, spoken: ElevenLabsDialogueContext) -> str:
        return spoken.parts[-1]

    def _of(self, part: str) -> ElevenLabsDialogueContext | None:
        spoken = self._contexts.get(part.partition(":")[2])
        return spoken if spoken is not None and part in spoken.parts else None

    def _dispatch_event(
        self, spoken: ElevenLabsDialogueContext, event: model.DialectEvent
    ) -> Iterator[model.DialectCommand]:
        if isinstance(event, model.ContextOpened) and spoken.failure is not None:
            yield model.CancelContext(event.context)
        yield from super()._dispatch_event(spoken, event)

    def _add_words(self, spoken: ElevenLabsDialogueContext, words: tuple[model.TimedWord, ...]) -> None:
        spoken.words += (shift_word(word, spoken.offset_ms) for word in words)

    def _send_audio(self, spoken: ElevenLabsDialogueContext, audio: model.ContextAudio) -> model.SendMessage:
        return self._send(spoken, audio.data, spoken.offset_ms + audio.start_ms, spoken.offset_ms + audio.end_ms)

    def _send_words(self, spoken: ElevenLabsDialogueContext) -> model.SendMessage:
        return self._send(spoken, b"", spoken.audio_end_ms, spoken.audio_end_ms)

    def _send_flushed(self, spoken: ElevenLabsDialogueContext) -> Iterator[model.DialectCommand]:
        yield from super()._send_flushed(spoken)
        yield model.SendMessage(dump(is_final_audio_for_turn=True, **self._named_if_many(spoken)))

    def _send_end(self, spoken: ElevenLabsDialogueContext, event: model.ContextEnded) -> Iterator[model.DialectCommand]:
        """End a part; the end of the last part is the context's."""
        spoken.parts.remove(event.context)
        spoken.offset_ms = spoken.audio_end_ms
        spoken.failure = spoken.failure or event.error
        if not spoken.parts:
            yield from super()._send_end(spoken, replace(event, error=spoken.failure))
        elif spoken.failure is not None:
            spoken.closed = True
            yield from self._cancel(spoken)

    def _send(
        self, spoken: ElevenLabsDialogueContext, data: bytes, start_ms: float, end_ms: float
    ) -> model.SendMessage:
        words, spoken.words = spoken.words, []
        spoken.audio_end_ms = end_ms
        chars = characters(words)
        if self._fills:
            owed_ms, spoken.owed_ms = spoken.owed_ms, 0.0 if start_ms or chars else end_ms
            fill_ms = chars.pop().start_ms if chars and chars[-1].text == " " else start_ms
            chars.append(TimedChar(" ", fill_ms, max(end_ms, fill_ms) + owed_ms))
        audio = encode_base64(data) if data else None
        return model.SendMessage(
            dump(audio=audio, alignment=snake_alignment(chars, start_ms), **self._named_if_many(spoken))
        )

    def _final(self) -> dict[str, Any]:
        return {"is_final": True}

    def _named(self, spoken: ElevenLabsDialogueContext) -> dict[str, str]:
        return {"context_id": spoken.name}


class ElevenLabsSingleDialogue(ElevenLabsDialogue):
    """``stream-input``: one dialogue without an id, until ``close_socket``; then the server closes."""

    single = True


def _with_space(spoken: ElevenLabsDialogueContext, text: str) -> str:
    """Lines are sentences."""
    before, spoken.last_text = spoken.last_text, text or spoken.last_text
    apart = before[-1:].isspace() or text[:1].isspace()
    return f" {text}" if text and before and not apart else text
