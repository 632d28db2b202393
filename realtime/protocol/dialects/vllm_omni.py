"""vLLM-Omni's ``/v1/audio/speech/stream``: a configuration, then utterances one after the other.

An utterance is one sentence of its protocol. With ``split_granularity`` ``none`` it is spoken when all its text is
there, otherwise while it is written.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import Struct

from engine.api import ErrorInfo
from realtime.errors import RemoteProtocolError
from realtime.protocol import model
from realtime.protocol.dialects.base import Dialect
from realtime.protocol.dialects.parsing import dump, encode_base64, parse_json, text_only

SAMPLE_RATE = 24_000
# Limit for an utterance whose text or audio is buffered: ten minutes are 30 MB.
MAX_HELD_CHARS = 10_000
# Fields of the speech API that hold as they do there; "voice" beside them says whose recording is meant.
SPEECH_FIELDS = frozenset(
    "task_type ref_audio ref_text x_vector_only_mode speaker_embedding do_sample temperature top_k top_p "
    "repetition_penalty repetition_window min_new_tokens predictor_do_sample predictor_temperature predictor_top_k "
    "predictor_top_p subtalker_dosample subtalker_temperature subtalker_top_k subtalker_top_p max_new_tokens "
    "max_frames chunk_frames initial_codec_chunk_frames text_layout non_streaming_mode markup speakers lexicons".split()
)
ENCODINGS = {
    "wav": "pcm_s16le",
    "pcm": "pcm_s16le",
    "flac": "flac",
    "mp3": "mp3",
    "aac": "aac",
    "opus": "ogg_opus",
}


class VllmOmniMessage(Struct):
    type: str
    text: str = ""
    voice: str | None = None
    speaker: str | None = None
    language: str | None = None
    instructions: str | None = None
    response_format: Literal["wav", "pcm", "flac", "mp3", "aac", "opus"] | None = None
    speed: float | None = None
    stream_audio: bool | None = None
    word_timestamps: bool | None = None
    seed: int | None = None
    split_granularity: Literal["none", "sentence", "clause"] | None = None


@dataclass(frozen=True, slots=True)
class VllmOmniConfig:
    """Configuration of a connection until the client changes it."""

    response_format: str = "wav"
    stream_audio: bool = False
    word_timestamps: bool = False
    split_granularity: str = "none"
    voice: str | None = None
    language: str | None = None
    instructions: str = ""
    speed: float = 1.0
    seed: int | None = None

    def updated(self, parsed: VllmOmniMessage) -> VllmOmniConfig:
        known = {name: getattr(parsed, name) for name in self.__slots__}
        given = {name: value for name, value in known.items() if value is not None}
        changed = VllmOmniConfig(**{name: given.get(name, getattr(self, name)) for name in self.__slots__})
        if changed.word_timestamps and not changed.stream_audio:
            raise RemoteProtocolError("invalid_request", "word_timestamps needs stream_audio", "word_timestamps")
        if changed.stream_audio and changed.response_format != "pcm":
            message = f"stream_audio needs response_format pcm, is {changed.response_format}"
            raise RemoteProtocolError("invalid_request", message, "response_format")
        return changed

    @property
    def streams(self) -> bool:
        """True if text and audio are streamed, so that nothing is buffered."""
        return self.stream_audio and self.split_granularity != "none"

    @property
    def to_options(self) -> model.SpeechOptions:
        return model.SpeechOptions(
            voice=self.voice,
            language=None if self.language in (None, "Auto", "auto") else self.language,
            format=model.RequestedFormat(ENCODINGS[self.response_format], SAMPLE_RATE),
            seed=self.seed,
            speed=self.speed,
            instruct=self.instructions,
            word_times=self.word_timestamps,
            burst=not self.stream_audio,
        )


@dataclass(slots=True)
class VllmOmniUtterance:
    config: VllmOmniConfig
    text: str = ""
    opened: bool = False
    started: bool = False
    # Until its end, unless it is streamed.
    audio: list[bytes] = field(default_factory=list)
    num_bytes: int = 0
    num_chunks: int = 0
    words: list[dict[str, Any]] = field(default_factory=list)


class VllmOmniDialect(Dialect):
    forgiving = True

    def __init__(self, handshake: model.ClientHandshake) -> None:
        super().__init__(handshake)
        self._config = VllmOmniConfig()
        # Utterances in order; text goes to the last one while it is ``_writing``.
        self._contexts: dict[str, VllmOmniUtterance] = {}
        self._writing: str | None = None
        self._num_utterances = 0

    def receive_message(self, message: model.Message) -> Iterator[model.DialectCommand]:
        parsed = parse_json(text_only(message), VllmOmniMessage)
        match parsed.type:
            case "session.config":
                self._configure(parsed)
                yield from _speech_fields(parsed, parse_json(message, dict[str, Any]))
            case "input.text":
                yield from self._write(parsed.text)
            case "input.done":
                yield from self._end_utterance()
            case "session.close":
                yield from self._end_utterance() if self._writing is not None else ()
                yield model.FinishContexts()
            case _:
                kind = parsed.type[:40]
                message = f"type must be session.config, input.text, input.done or session.close, is {kind!r}"
                raise RemoteProtocolError("unknown_event", message, "type")

    def send_event(self, event: model.DialectEvent) -> Iterator[model.DialectCommand]:
        match event:
            case model.ContextAudio():
                yield from self._send_audio(event)
            case model.ContextWords():
                fields = self._contexts[event.context].words
                fields += [
                    {"word": word.text, "start_ms": word.start_ms, "end_ms": word.end_ms} for word in event.words
                ]
            case model.ContextEnded():
                yield from self._end(event)
            case model.AllContextsEnded():
                yield model.CloseConnection()

    def send_error(self, error: ErrorInfo, close: int | None) -> Iterator[model.DialectCommand]:
        yield self._send("error", message=error.message)

    def _configure(self, parsed: VllmOmniMessage) -> None:
        if parsed.speaker and not parsed.voice:
            parsed.voice = parsed.speaker
        if self._writing is not None:
            raise RemoteProtocolError("invalid_event", "session.config within an utterance", "type")
        self._config = self._config.updated(parsed)

    def _write(self, text: str) -> Iterator[model.DialectCommand]:
        if self._writing is None:
            self._writing = str(self._num_utterances)
            self._num_utterances += 1
            self._contexts[self._writing] = VllmOmniUtterance(self._config)
            yield model.OpenContext(self._writing, self._config.to_options)
        utterance = self._contexts.get(self._writing)
        if utterance is None:
            return
        if not utterance.started:
            utterance.text += text
        if len(utterance.text) > MAX_HELD_CHARS and not utterance.config.streams:
            message = f"an utterance without stream_audio and split_granularity may have {MAX_HELD_CHARS} characters"
            raise RemoteProtocolError("request_too_long", message, "text")
        if utterance.config.split_granularity != "none":
            yield model.AppendText(self._writing, text)

    def _end_utterance(self) -> Iterator[model.DialectCommand]:
        if self._writing is None:
            yield from self._write("")
        context, self._writing = self._writing, None
        assert context is not None
        utterance = self._contexts.get(context)
        if utterance is not None and utterance.config.split_granularity == "none":
            yield model.AppendText(context, utterance.text, last=True)
        else:
            yield model.EndContext(context)

    def _send_audio(self, event: model.ContextAudio) -> Iterator[model.DialectCommand]:
        utterance = self._contexts[event.context]
        utterance.num_bytes += len(event.data)
        if not utterance.config.stream_audio:
            utterance.audio.append(event.data)
            return
        yield from self._start(event.context)
        if utterance.config.word_timestamps:
            yield self._chunk(event.context, event.data, event.start_ms, event.end_ms, None)
        else:
            yield model.SendMessage(event.data)

    def _start(self, context: str) -> Iterator[model.DialectCommand]:
        utterance = self._contexts[context]
        if not utterance.started:
            utterance.started = True
            kind = utterance.config.response_format
            about = {"sentence_text": utterance.text, "format": kind, "sample_rate": SAMPLE_RATE}
            yield self._send("audio.start", **self._place(context), **about)

    def _chunk(
        self, context: str, data: bytes, start_ms: float, end_ms: float, words: list[dict[str, Any]] | None
    ) -> model.SendMessage:
        utterance = self._contexts[context]
        number, utterance.num_chunks = utterance.num_chunks, utterance.num_chunks + 1
        return self._send(
            "audio.chunk",
            **self._place(context),
            chunk_id=number,
            chunk_start_ms=start_ms,
            chunk_end_ms=end_ms,
            sample_rate=SAMPLE_RATE,
            audio_b64=encode_base64(data),
            timestamps=words,
        )

    def _end(self, event: model.ContextEnded) -> Iterator[model.DialectCommand]:
        utterance = self._contexts.get(event.context)
        if utterance is None:
            return
        spoken = utterance.num_bytes > 0
        if (error := event.failure) is not None:
            yield self._send("error", message=error.message, partial_audio=utterance.started)
        elif spoken:
            yield from self._start(event.context)
            if utterance.audio:
                yield model.SendMessage(_file(utterance))
            if utterance.config.word_timestamps:
                yield self._chunk(event.context, b"", event.audio_ms, event.audio_ms, utterance.words)
        if utterance.started:
            fields = {"total_bytes": utterance.num_bytes, "error": error is not None}
            yield self._send("audio.done", **self._place(event.context), **fields)
        yield self._send("session.done", utterance_index=int(event.context), total_sentences=int(utterance.started))
        self._contexts.pop(event.context)
        if self._writing == event.context:
            self._writing = None

    def _place(self, context: str) -> dict[str, int]:
        return {"utterance_index": int(context), "sentence_index": 0}

    def _send(self, kind: str, **fields: Any) -> model.SendMessage:
        return model.SendMessage(dump(type=kind, **fields))


def _speech_fields(parsed: VllmOmniMessage, given: dict[str, Any]) -> Iterator[model.DialectCommand]:
    """Return the message's fields of the speech API as a command."""
    fields = {name: given[name] for name in SPEECH_FIELDS & given.keys() if given[name] is not None}
    if parsed.voice:
        fields["voice"] = parsed.voice
    if fields:
        yield model.Configure(fields)


def _file(utterance: VllmOmniUtterance) -> bytes:
    data = b"".join(utterance.audio)
    return wav_header(len(data)) + data if utterance.config.response_format == "wav" else data


def wav_header(num_bytes: int) -> bytes:
    """Return the header of 16-bit mono PCM at ``SAMPLE_RATE``."""
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, SAMPLE_RATE, 2 * SAMPLE_RATE, 2, 16)
    return struct.pack("<4sI4s", b"RIFF", 36 + num_bytes, b"WAVE") + form + struct.pack("<4sI", b"data", num_bytes)
