"""Deepgram's ``/v1/speak``: a socket with one line of text, cut into turns by flushes, and a POST of a whole text.

The socket sends audio as it is, in binary. How a query is read holds for ``/v2/speak``, too.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from msgspec import Struct

from engine.api import ErrorInfo
from realtime.errors import CloseCode, RemoteProtocolError
from realtime.protocol import model
from realtime.protocol.dialects.base import Dialect, HttpDialect
from realtime.protocol.dialects.parsing import close_reason, dump, integer, parse_json, text_only, unsupported_format

ENCODINGS = {"linear16": "pcm_s16le", "mulaw": "mulaw", "alaw": "alaw"}
# Taken when none is named.
RATES = {
    "linear16": 24_000,
    "mulaw": 8_000,
    "alaw": 8_000,
    "mp3": 22_050,
    "opus": 48_000,
    "flac": 24_000,
    "aac": 22_050,
}
FAMILIES = ("aura", "aura-2", "flux")
MAX_SPEED = 10.0
MAX_NUMBER = 999_999_999
MODEL_UUID = "00000000-0000-0000-0000-000000000000"
MODEL_VERSION = "voicewire"
CLOSES: dict[int, int] = {CloseCode.INVALID_DATA: 1008, CloseCode.UNSUPPORTED_DATA: 1008, CloseCode.GOING_AWAY: 1000}
MEDIA_TYPES = {
    "pcm_s16le": "audio/l16",
    "wav": "audio/wav",
    "mulaw": "audio/mulaw",
    "alaw": "audio/alaw",
    "mp3": "audio/mpeg",
    "ogg_opus": "audio/ogg",
    "flac": "audio/flac",
    "aac": "audio/aac",
}
FILE_ENCODINGS = {"mp3": "mp3", "opus": "ogg_opus", "flac": "flac", "aac": "aac", "mulaw": "mulaw", "alaw": "alaw"}
CONTAINERS = ("none", "wav", "ogg")


def parse_options(query: Mapping[str, str], format: model.RequestedFormat) -> model.SpeechOptions:
    """Parse the query; raises ``RemoteProtocolError``."""
    voice, language = voice_and_language(query.get("model", ""))
    speed = _speed(query.get("speed"))
    return model.SpeechOptions(voice=voice, language=language, format=format, speed=speed, inline_forms=("deepgram",))


def voice_and_language(name: str) -> tuple[str | None, str | None]:
    """``aura-2-thalia-en`` is the voice thalia, English; any other name is a voice as it is."""
    head, _, language = name.rpartition("-")
    family, _, voice = head.rpartition("-")
    if family in FAMILIES and voice:
        return voice, language
    return name or None, None


def socket_format(query: Mapping[str, str]) -> model.RequestedFormat:
    """Parse the format of a socket's query; raises ``RemoteProtocolError``."""
    encoding = query.get("encoding") or "linear16"
    if encoding not in ENCODINGS:
        raise unsupported_format("encoding", ENCODINGS, encoding)
    return model.RequestedFormat(ENCODINGS[encoding], sample_rate(query, encoding))


def sample_rate(query: Mapping[str, str], encoding: str) -> int:
    return integer(query, "sample_rate", 0, MAX_NUMBER) or RATES[encoding]


def refusal(error: ErrorInfo) -> tuple[dict[str, Any], dict[str, str]]:
    """Body and headers of an HTTP answer."""
    return {"err_code": error.code.upper(), "err_msg": error.message, "request_id": None}, {"dg-error": error.message}


def _speed(text: str | None) -> float:
    try:
        speed = float(text) if text else 1.0
    except ValueError:
        speed = -1.0
    if not 0 < speed <= MAX_SPEED:
        raise RemoteProtocolError(
            "invalid_request", f"speed must be a number above 0, is {(text or '')[:20]!r}", "speed"
        )
    return speed


@dataclass(slots=True, kw_only=True)
class DeepgramTurn:
    """A turn, from its first text to its flush."""

    flushed: bool = False
    # Dropped by the client.
    cleared: bool = False


T = TypeVar("T", bound=DeepgramTurn)


class DeepgramSocket(Dialect, Generic[T]):
    """Base of both sockets: each turn is a context, spoken one after the other."""

    def __init__(self, handshake: model.ClientHandshake) -> None:
        super().__init__(handshake)
        self.options: model.SpeechOptions = parse_options(handshake.query, socket_format(handshake.query))
        self._contexts: dict[str, T] = {}
        self._num_turns = 0

    def headers(self) -> dict[str, str]:
        return {"dg-request-id": self.handshake.request_id}

    def send_error(self, error: ErrorInfo, close: int | None) -> Iterator[model.DialectCommand]:
        yield self._error(error)
        if close is not None:
            yield model.CloseConnection(CLOSES.get(close, close), close_reason(error.message))

    @classmethod
    def reject_handshake(cls, error: ErrorInfo, status: int) -> tuple[dict[str, Any], dict[str, str]]:
        return refusal(error)

    @property
    def _open_turn(self) -> str | None:
        """The turn that text goes to."""
        context, turn = next(reversed(self._contexts.items()), (None, None))
        return None if turn is None or turn.flushed or turn.cleared else context

    def _begin_turn(self, turn: T) -> Generator[model.DialectCommand, None, str]:
        context = str(self._num_turns)
        self._num_turns += 1
        self._contexts[context] = turn
        yield model.OpenContext(context, self.options)
        return context

    @abstractmethod
    def _error(self, error: ErrorInfo) -> model.SendMessage: ...

    def _send(self, kind: str, **fields: Any) -> model.SendMessage:
        return model.SendMessage(dump(type=kind, **fields))


class DeepgramMessage(Struct):
    type: str
    text: str | None = None


class DeepgramDialect(DeepgramSocket[DeepgramTurn]):
    def __init__(self, handshake: model.ClientHandshake) -> None:
        super().__init__(handshake)
        self._model = handshake.query.get("model") or "default"
        self._num_answers = 0

    def start(self) -> Iterator[model.DialectCommand]:
        yield self._send(
            "Metadata",
            request_id=self.handshake.request_id,
            model_name=self._model,
            model_version=MODEL_VERSION,
            model_uuid=MODEL_UUID,
        )

    def receive_message(self, message: model.Message) -> Iterator[model.DialectCommand]:
        parsed = parse_json(text_only(message), DeepgramMessage)
        match parsed.type:
            case "Speak":
                yield from self._append(parsed.text or "")
            case "Flush":
                yield from self._flush()
            case "Clear":
                yield from self._clear()
            case "Close":
                yield from self._finish()
            case "KeepAlive":
                pass
            case _:
                message = f"type must be Speak, Flush, Clear or Close, is {parsed.type[:40]!r}"
                raise RemoteProtocolError("unknown_event", message, "type")

    def send_event(self, event: model.DialectEvent) -> Iterator[model.DialectCommand]:
        match event:
            case model.ContextAudio():
                yield model.SendMessage(event.data)
            case model.ContextEnded():
                yield from self._end(event)
            case model.AllContextsEnded():
                yield model.CloseConnection()

    def _append(self, text: str) -> Iterator[model.DialectCommand]:
        context = self._open_turn
        if context is None:
            if not text.strip():
                return
            context = yield from self._begin_turn(DeepgramTurn())
        yield model.AppendText(context, text)

    def _flush(self) -> Iterator[model.DialectCommand]:
        """Flush the turn; a flush without text is answered in order, too."""
        context = self._open_turn
        if context is None:
            context = yield from self._begin_turn(DeepgramTurn())
        self._contexts[context].flushed = True
        yield model.EndContext(context)

    def _clear(self) -> Iterator[model.DialectCommand]:
        for context, turn in self._contexts.items():
            turn.cleared = True
            yield model.CancelContext(context)
        yield self._answer("Cleared")

    def _finish(self) -> Iterator[model.DialectCommand]:
        context = self._open_turn
        if context is not None:
            yield model.EndContext(context)
        yield model.FinishContexts()

    def _end(self, event: model.ContextEnded) -> Iterator[model.DialectCommand]:
        turn = self._contexts.pop(event.context)
        if turn.cleared:
            return
        if (error := event.failure) is not None:
            yield self._error(error)
        if turn.flushed:
            yield self._answer("Flushed")

    def _answer(self, kind: str) -> model.SendMessage:
        number, self._num_answers = self._num_answers, self._num_answers + 1
        return self._send(kind, sequence_id=number)

    def _error(self, error: ErrorInfo) -> model.SendMessage:
        fields = {"description": error.message, "code": error.code}
        return self._send("Error", **fields, err_msg=error.message, err_code=error.code)


class DeepgramBody(Struct):
    text: str


class DeepgramHttp(HttpDialect):
    def __init__(self, handshake: model.ClientHandshake) -> None:
        super().__init__(handshake)
        self.options: model.SpeechOptions = parse_options(handshake.query, file_format(handshake.query))
        self.media_type = MEDIA_TYPES[self.options.format.encoding]

    def headers(self) -> dict[str, str]:
        model = self.handshake.query.get("model") or "default"
        return {"dg-request-id": self.handshake.request_id, "dg-model-name": model}

    def receive_message(self, message: model.Message) -> Iterator[model.DialectCommand]:
        body = parse_json(message, DeepgramBody)
        yield from self.start_response(self.options, body.text)

    @classmethod
    def reject_handshake(cls, error: ErrorInfo, status: int) -> tuple[dict[str, Any], dict[str, str]]:
        return refusal(error)


def file_format(query: Mapping[str, str]) -> model.RequestedFormat:
    """MP3 unless the query says otherwise; linear16 comes as WAV unless it asks for no container.

    Raises ``RemoteProtocolError``.
    """
    encoding, container = query.get("encoding") or "mp3", query.get("container")
    if container and container not in CONTAINERS:
        raise unsupported_format("container", CONTAINERS, container)
    rate = sample_rate(query, encoding if encoding in (*FILE_ENCODINGS, "linear16") else "linear16")
    if encoding == "linear16":
        return model.RequestedFormat("pcm_s16le" if container == "none" else "wav", rate)
    if encoding not in FILE_ENCODINGS:
        raise unsupported_format("encoding", ("linear16", *FILE_ENCODINGS), encoding)
    return model.RequestedFormat(FILE_ENCODINGS[encoding], rate, integer(query, "bit_rate", 0, MAX_NUMBER))
