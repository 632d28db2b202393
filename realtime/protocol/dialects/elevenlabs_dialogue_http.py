"""ElevenLabs' dialogues over HTTP: inputs, each by its voice, as one response; plain or with times."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from msgspec import Struct

from realtime.errors import RemoteProtocolError
from realtime.protocol import model
from realtime.protocol.dialects.base import HTTP_CONTEXT
from realtime.protocol.dialects.elevenlabs_common import BRACKETS, DictionaryLocator, characters, lexicon_names
from realtime.protocol.dialects.elevenlabs_http import ElevenLabsStream, ElevenLabsTimestampStream, WithTimestamps
from realtime.protocol.dialects.parsing import parse_json


class ElevenLabsDialogueInput(Struct):
    text: str
    voice_id: str | None = None


class ElevenLabsDialogueBody(Struct):
    inputs: list[ElevenLabsDialogueInput]
    language_code: str | None = None
    seed: int | None = None
    pronunciation_dictionary_locators: list[DictionaryLocator] | None = None


class ElevenLabsDialogueStream(ElevenLabsStream):
    """``/v1/text-to-dialogue`` and ``.../stream``: inputs one after the other."""

    def __init__(self, handshake: model.ClientHandshake) -> None:
        super().__init__(handshake)
        self._inputs: list[ElevenLabsDialogueInput] = []
        # Of the inputs with text, where each begins in the text of the response, and its index.
        self._starts: list[int] = []
        self._indices: list[int] = []

    def receive_message(self, message: model.Message) -> Iterator[model.DialectCommand]:
        body = parse_json(message, ElevenLabsDialogueBody)
        self._inputs = body.inputs
        self._indices = [index for index, line in enumerate(body.inputs) if line.text.strip()]
        if not self._indices:
            raise RemoteProtocolError("invalid_request", "inputs hold no text", "inputs")
        voice = body.inputs[self._indices[0]].voice_id
        options = replace(
            self.options,
            voice=voice,
            language=body.language_code or self.options.language,
            seed=body.seed,
            inline_forms=BRACKETS,
            lexicons=lexicon_names(body.pronunciation_dictionary_locators),
        )
        yield model.OpenContext(HTTP_CONTEXT, options)
        num_chars = 0
        for index in self._indices:
            line = body.inputs[index]
            if line.voice_id is not None and line.voice_id != voice:
                voice = line.voice_id
                yield model.ChangeVoice(HTTP_CONTEXT, voice)
            text = f" {line.text.strip()}" if num_chars else line.text.strip()
            self._starts.append(num_chars)
            num_chars += len(text)
            yield model.AppendText(HTTP_CONTEXT, text, last=index == self._indices[-1])


class ElevenLabsDialogueTimestampStream(ElevenLabsDialogueStream, ElevenLabsTimestampStream):
    """``.../stream/with-timestamps``: times, and the voice of each run of characters."""

    def _pop_times(self) -> dict[str, Any]:
        words = self._words
        return super()._pop_times() | {"voice_segments": self._voice_segments(words)}

    def _voice_segments(self, words: Sequence[model.TimedWord]) -> list[dict[str, Any]]:
        """Return the inputs that the words belong to. Characters are counted in the alignment of the same message."""
        segments = []
        end = 0
        for index, run in groupby(words, self._input_of):
            spoken = list(run)
            start, end = end, end + len(characters(spoken))
            segments.append(
                {
                    "voice_id": self._inputs[index].voice_id,
                    "start_time_seconds": round(spoken[0].start_ms / 1000, 3),
                    "end_time_seconds": round(spoken[-1].end_ms / 1000, 3),
                    "character_start_index": start,
                    "character_end_index": end,
                    "dialogue_input_index": index,
                }
            )
        return segments

    def _input_of(self, word: model.TimedWord) -> int:
        return self._indices[bisect_right(self._starts, word.raw_start) - 1]


class DialogueWithTimestamps(ElevenLabsDialogueTimestampStream, WithTimestamps):
    """``.../with-timestamps``: the same as one JSON document."""
