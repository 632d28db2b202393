"""Kyutai's ``/api/tts_streaming`` (moshi-server): one text a connection, words in, PCM or Ogg Opus out, as MessagePack
or bare."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from engine.api import ErrorInfo
from realtime.errors import CAPACITY_CODES, RemoteProtocolError
from realtime.protocol import model
from realtime.protocol.dialects.base import Dialect, HttpDialect
from realtime.protocol.dialects.parsing import integer, parse_json, unsupported_format

SAMPLE_RATE = 24_000
# PCM leaves in steps of 80 ms.
STEP_BYTES = 4 * 1_920
FORMATS = {"Pcm": "pcm_f32le", "PcmMessagePack": "pcm_f32le", "OggOpus": "ogg_opus", "OggOpusMessagePack": "ogg_opus"}
END_OF_TEXT = b"\0"
CONTEXT = ""


class KyutaiMessage(Struct):
    type: str
    text: str = ""


class KyutaiDialect(Dialect):
    """Kyutai's socket: each text message is one or more words, joined by white space."""

    def __init__(self, handshake: model.ClientHandshake) -> None:
        super().__init__(handshake)
        kind = handshake.query.get("format", "OggOpus")
        if kind not in FORMATS:
            raise unsupported_format("format", FORMATS, kind)
        self._packed = kind.endswith("MessagePack")
        self._is_pcm = FORMATS[kind] == "pcm_f32le"
        self._held = b""
        self._ended = False
        self.options: model.SpeechOptions = model.SpeechOptions(
            voice=handshake.query.get("voice"),
            format=model.RequestedFormat(FORMATS[kind], SAMPLE_RATE),
            seed=integer(handshake.query, "seed"),
            word_times=self._packed,
        )

    def start(self) -> Iterator[model.DialectCommand]:
        if self._packed:
            yield self._pack("Ready")
        yield model.OpenContext(CONTEXT, self.options)

    def receive_message(self, message: model.Message) -> Iterable[model.DialectCommand]:
        if isinstance(message, str):
            return self._append(message)
        if message == END_OF_TEXT:
            return self._end()
        parsed = _unpacked(message)
        match parsed.type:
            case "Text":
                return self._append(parsed.text)
            case "Eos":
                return self._end()
            case "Voice":
                return ()
        raise RemoteProtocolError("unknown_event", f"type must be Text, Voice or Eos, is {parsed.type[:40]!r}", "type")

    def send_event(self, event: model.DialectEvent) -> Iterator[model.DialectCommand]:
        match event:
            case model.ContextAudio():
                yield from self._send_audio(event.data)
            case model.ContextWords() if self._packed:
                for word in event.words:
                    times = {"start_s": word.start_ms / 1000, "stop_s": word.end_ms / 1000}
                    yield self._pack("Text", text=word.text, **times)
            case model.ContextEnded():
                yield from self._rest()
                if (error := event.failure) is not None:
                    yield from self.send_error(error, None)
                yield model.CloseConnection()

    def send_error(self, error: ErrorInfo, close: int | None) -> Iterator[model.DialectCommand]:
        if self._packed:
            # Its clients know the text of a server without capacity; a quota has a time of its own.
            is_full = error.code in CAPACITY_CODES and error.code != "quota_exceeded"
            yield self._pack("Error", message="no free channels" if is_full else error.message)

    def _append(self, text: str) -> Iterator[model.DialectCommand]:
        if text and not self._ended:
            yield model.AppendText(CONTEXT, text if text[-1].isspace() else text + " ")

    def _end(self) -> Iterator[model.DialectCommand]:
        self._ended = True
        yield model.EndContext(CONTEXT)

    def _send_audio(self, data: bytes) -> Iterator[model.DialectCommand]:
        if not self._is_pcm:
            yield self._pack("OggOpus", data=data) if self._packed else model.SendMessage(data)
            return
        self._held += data
        whole = len(self._held) // STEP_BYTES * STEP_BYTES
        for at in range(0, whole, STEP_BYTES):
            yield self._step(self._held[at : at + STEP_BYTES])
        self._held = self._held[whole:]

    def _rest(self) -> Iterator[model.DialectCommand]:
        """The last step is filled up with silence."""
        if self._held:
            yield self._step(self._held.ljust(STEP_BYTES, b"\0"))
        self._held = b""

    def _step(self, data: bytes) -> model.SendMessage:
        return self._pack("Audio", pcm=array("f", data).tolist()) if self._packed else model.SendMessage(data)

    def _pack(self, kind: str, **fields: Any) -> model.SendMessage:
        return model.SendMessage(msgspec.msgpack.encode({"type": kind, **fields}))


def _unpacked(message: bytes) -> KyutaiMessage:
    try:
        return msgspec.msgpack.decode(message, type=KyutaiMessage)
    except msgspec.ValidationError as error:
        raise RemoteProtocolError("invalid_event", str(error)) from None
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise RemoteProtocolError("invalid_event", f"not a MessagePack message: {error}") from None


class KyutaiBody(Struct):
    text: str
    voice: str | list[str] | None = None
    seed: int | None = None


class KyutaiHttp(HttpDialect):
    """POST on the same path: a text in, a WAV stream out."""

    media_type = "audio/wav"

    def receive_message(self, message: model.Message) -> Iterator[model.DialectCommand]:
        body = parse_json(message, KyutaiBody)
        voice = body.voice if isinstance(body.voice, str) else next(iter(body.voice or ()), None)
        options = model.SpeechOptions(voice=voice, format=model.RequestedFormat("wav", SAMPLE_RATE), seed=body.seed)
        yield from self.start_response(options, body.text)
