"""ElevenLabs' text-to-dialogue sockets, which its v3 and v4 models speak: lines, each by its voice, in one signal.

A dialogue is one context, whose voice changes between lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from realtime.errors import RemoteProtocolError
from realtime.protocol import model
from realtime.protocol.dialects.elevenlabs import (
    DialogueLine,
    ElevenLabsContext,
    ElevenLabsMessage,
    ElevenLabsSocket,
)
from realtime.protocol.dialects.elevenlabs_common import (
    BRACKETS,
    TimedChar,
    characters,
    parse_options,
    snake_alignment,
)
from realtime.protocol.dialects.parsing import dump, encode_base64, is_true

IDLE_S = 20.0


@dataclass(slots=True, kw_only=True)
class ElevenLabsDialogueContext(ElevenLabsContext):
    # The voice of the last line.
    voice: str | None = None
    # The turn that is written has text.
    unflushed: bool = False
    # End of the audio in the sent alignments.
    audio_end_ms: float = 0.0
    # pipecat strips leading spaces, and with them the first message's share of its clock: the second makes up.
    owed_ms: float = 0.0


class ElevenLabsDialogue(ElevenLabsSocket[ElevenLabsDialogueContext]):
    """``multi-stream-input``, in snake case."""

    context_timeout_s = IDLE_S

    def __init__(self, handshake: model.ClientHandshake) -> None:
        super().__init__(handshake)
        self.options: model.SpeechOptions = replace(parse_options(handshake.query, None), inline_forms=BRACKETS)
        if self.options.format.encoding == "wav":
            raise RemoteProtocolError("unsupported_format", "a WAV file has an end, this socket none", "output_format")
        # The times of each message cover its audio only: clients add them up.
        self._fills = is_true(handshake.query.get("sync_alignment"))

    def _begins(self, parsed: ElevenLabsMessage) -> bool:
        return bool(parsed.voices or parsed.inputs)

    def _open(self, name: str, parsed: ElevenLabsMessage) -> tuple[ElevenLabsDialogueContext, model.OpenContext]:
        named = [*(line.voice_id for line in parsed.inputs or () if line.voice_id), *(parsed.voices or ())]
        spoken = ElevenLabsDialogueContext(name=name, voice=named[0] if named else None)
        return spoken, model.OpenContext(name, replace(parsed.over(self.options), voice=spoken.voice))

    def _append(self, spoken: ElevenLabsDialogueContext, parsed: ElevenLabsMessage) -> Iterator[model.DialectCommand]:
        for line in parsed.inputs or ():
            yield from self._append_line(spoken, line)
        if not parsed.inputs:
            yield model.AppendText(spoken.name, "")

    def _append_line(self, spoken: ElevenLabsDialogueContext, line: DialogueLine) -> Iterator[model.DialectCommand]:
        if line.text.strip():
            voice = line.voice_id or spoken.voice
            if spoken.unflushed and (voice != spoken.voice or line.new_turn):
                yield from self._flush(spoken)
            if voice is not None and voice != spoken.voice:
                spoken.voice = voice
                yield model.ChangeVoice(spoken.name, voice)
            spoken.unflushed = True
        yield model.AppendText(spoken.name, _with_space(spoken, line.text))

    def _flush(self, spoken: ElevenLabsDialogueContext) -> Iterator[model.DialectCommand]:
        spoken.unflushed = False
        yield from super()._flush(spoken)

    def _send_audio(self, spoken: ElevenLabsDialogueContext, audio: model.ContextAudio) -> model.SendMessage:
        return self._send(spoken, audio.data, audio.start_ms, audio.end_ms)

    def _send_words(self, spoken: ElevenLabsDialogueContext) -> model.SendMessage:
        return self._send(spoken, b"", spoken.audio_end_ms, spoken.audio_end_ms)

    def _send_flushed(self, spoken: ElevenLabsDialogueContext) -> Iterator[model.DialectCommand]:
        yield from super()._send_flushed(spoken)
        yield model.SendMessage(dump(is_final_audio_for_turn=True, **self._named_if_many(spoken)))

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
