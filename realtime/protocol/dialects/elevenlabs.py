"""ElevenLabs' sockets: ``stream-input``, which speaks one text, and ``multi-stream-input``, which speaks many."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from realtime.protocol import model
from realtime.protocol.dialects.elevenlabs_alignment import alignment, characters
from realtime.protocol.dialects.elevenlabs_common import inactivity_s, parse_options
from realtime.protocol.dialects.elevenlabs_socket import ElevenLabsContext, ElevenLabsMessage, ElevenLabsSocket
from realtime.protocol.dialects.parsing import dump, is_true

DEFAULT_INACTIVITY_S, MAX_INACTIVITY_S = 20, 180


@dataclass(slots=True, kw_only=True)
class ElevenLabsTextContext(ElevenLabsContext):
    # Where the times of the next message count from.
    base_ms: float = 0.0


class ElevenLabsMultiStream(ElevenLabsSocket[ElevenLabsTextContext]):
    def __init__(self, handshake: model.ClientHandshake) -> None:
        super().__init__(handshake)
        self.options = parse_options(handshake.query, handshake.path.get("voice_id"))
        self.context_timeout_s = inactivity_s(handshake.query, DEFAULT_INACTIVITY_S, MAX_INACTIVITY_S)
        # Clients send whole sentences, which need a space between them.
        self._spaces = is_true(handshake.query.get("auto_mode"))
        # Times run over the whole context; else they begin anew with every message.
        self._absolute = is_true(handshake.query.get("sync_alignment"))

    def _begins(self, said: ElevenLabsMessage) -> bool:
        return bool(said.text)

    def _open(self, name: str, said: ElevenLabsMessage) -> tuple[ElevenLabsTextContext, model.OpenContext]:
        assert self.options is not None
        speed = said.voice_settings.speed if said.voice_settings else None
        wish = self.options if speed is None else replace(self.options, speed=speed)
        return ElevenLabsTextContext(name=name), model.OpenContext(name, wish)

    def _append(self, spoken: ElevenLabsTextContext, said: ElevenLabsMessage) -> Iterator[model.DialectCommand]:
        text = said.text or ""
        yield model.AppendText(spoken.name, self._with_space(spoken, text))
        spoken.last_text = text or spoken.last_text

    def _with_space(self, spoken: ElevenLabsTextContext, text: str) -> str:
        apart = spoken.last_text[-1:].isspace() or text[:1].isspace()
        return f" {text}" if self._spaces and text and spoken.last_text and not apart else text

    def _send_audio(self, spoken: ElevenLabsTextContext, audio: model.ContextAudio) -> model.SendMessage:
        return self._send(spoken, base64.b64encode(audio.data).decode())

    def _send_words(self, spoken: ElevenLabsTextContext) -> model.SendMessage:
        return self._send(spoken, None)

    def _send(self, spoken: ElevenLabsTextContext, audio: str | None) -> model.SendMessage:
        words, spoken.words = spoken.words, []
        told = alignment(characters(words), spoken.base_ms)
        normalized = alignment(characters(words, spoken=True), spoken.base_ms)
        if words and not self._absolute:
            spoken.base_ms = words[-1].end_ms
        named = self._named_if_many(spoken)
        return model.SendMessage(
            dump(audio=audio, isFinal=None, alignment=told, normalizedAlignment=normalized, **named)
        )

    def _final(self) -> dict[str, Any]:
        return {"audio": None, "isFinal": True}

    def _named(self, spoken: ElevenLabsTextContext) -> dict[str, str]:
        """Some clients read one spelling, some the other."""
        return {"contextId": spoken.name, "context_id": spoken.name}


class ElevenLabsStreamInput(ElevenLabsMultiStream):
    """One text, ended by an empty one; then the server closes."""

    single = True

    def _begins(self, said: ElevenLabsMessage) -> bool:
        return said.text is not None

    def _append(self, spoken: ElevenLabsTextContext, said: ElevenLabsMessage) -> Iterator[model.DialectCommand]:
        if said.text == "":
            yield from self._end_text(spoken)
        else:
            yield from super()._append(spoken, said)

    def _close_context(self, name: str) -> Iterator[model.DialectCommand]:
        """Not of this socket, and plain enough."""
        return self._close_all()
