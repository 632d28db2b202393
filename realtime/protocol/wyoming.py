"""Wyoming: its events as bytes, and its dialect.

A text comes at once or in chunks; PCM is sent between ``audio-start`` and ``audio-stop``. An event is a line of JSON,
then its data as JSON, then a payload, each as long as the line says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from engine.api import ErrorInfo
from realtime.errors import RemoteProtocolError
from realtime.protocol import model
from realtime.protocol.dialects.base import Dialect

WIDTH, CHANNELS = 2, 1
MAX_NAME_CHARS = 128


class WyomingDialect(Dialect):
    """A Wyoming connection; messages are pieces of the byte stream, cut anywhere."""

    forgiving = True

    def __init__(self, info: Data, sample_rate: int, max_data_bytes: int) -> None:
        super().__init__(model.ClientHandshake(path={}, query={}, headers={}, request_id=""))
        self._info = info
        self._format = {"rate": sample_rate, "width": WIDTH, "channels": CHANNELS}
        self._reader = WyomingEventReader(max_data_bytes)
        self._num_texts = 0
        # The text that comes in chunks.
        self._arriving: str | None = None
        # Contexts that end with ``synthesize-stopped``.
        self._streamed: set[str] = set()
        # Contexts whose audio has started.
        self._sounding: set[str] = set()
        self._broken = False

    def receive_message(self, message: model.Message) -> Iterator[model.DialectCommand]:
        piece = message if isinstance(message, bytes) else message.encode()
        events = self._reader.push(piece)
        while not self._broken:
            try:
                event = next(events, None)
            except RemoteProtocolError as error:
                self._broken = True  # where the next event begins cannot be known
                yield from self.send_error(error.info, None)
                yield model.CloseConnection(1002, error.code)
                return
            if event is None:
                return
            yield from self._is_ignorable(event)

    def _is_ignorable(self, event: WyomingEvent) -> Iterator[model.DialectCommand]:
        try:
            yield from self._act(event)
        except RemoteProtocolError as error:
            yield from self.send_error(error.info, None)

    def _act(self, event: WyomingEvent) -> Iterator[model.DialectCommand]:
        """Carry out an event; unknown ones are ignored."""
        match event.type:
            case "describe":
                yield _send("info", self._info)
            case "ping":
                yield _send("pong", {"text": event.data.get("text")})
            case "synthesize" if self._arriving is None:  # else the whole text again, for those who know no chunks
                text = _text(event.data)
                yield from self._open(event.data)
                yield model.AppendText(self._last, text, last=True)
            case "synthesize-start":
                if self._arriving is not None:
                    raise RemoteProtocolError("invalid_event", "a text is arriving already", "synthesize-start")
                yield from self._open(event.data)
                self._arriving = self._last
                self._streamed.add(self._last)
            case "synthesize-chunk":
                yield model.AppendText(self._require_start(event.type), _text(event.data))
            case "synthesize-stop":
                context, self._arriving = self._require_start(event.type), None
                yield model.EndContext(context)

    @property
    def _last(self) -> str:
        """The text that was opened last."""
        return str(self._num_texts)

    def _open(self, data: Data) -> Iterator[model.DialectCommand]:
        if data.get("text_format") not in (None, "text"):
            raise RemoteProtocolError("invalid_event", "text_format must be text", "text_format")
        voice = data.get("voice") or {}
        if not isinstance(voice, dict):
            raise RemoteProtocolError("invalid_event", "voice must be an object", "voice")
        options = model.SpeechOptions(
            voice=_name(voice, "name"),
            language=_name(voice, "language"),
            format=model.RequestedFormat("pcm_s16le", self._format["rate"]),
            burst=True,
        )
        self._num_texts += 1
        yield model.OpenContext(self._last, options)

    def _require_start(self, kind: str) -> str:
        if self._arriving is None:
            raise RemoteProtocolError("invalid_event", f"{kind} came before synthesize-start", kind)
        return self._arriving

    def send_event(self, event: model.DialectEvent) -> Iterator[model.DialectCommand]:
        match event:
            case model.ContextAudio():
                yield from self._start(event.context)
                yield model.SendMessage(serialize(WyomingEvent("audio-chunk", self._format, event.data)))
            case model.ContextEnded():
                yield from self._ended(event)

    def _start(self, context: str) -> Iterator[model.DialectCommand]:
        if context not in self._sounding:
            self._sounding.add(context)
            yield _send("audio-start", self._format)

    def _ended(self, event: model.ContextEnded) -> Iterator[model.DialectCommand]:
        """Report the end of audio to a client that waits for it, also after an error."""
        if self._arriving == event.context:
            self._arriving = None
        if event.error is not None:
            yield _send("error", {"text": event.error.message, "code": event.error.code})
        yield from self._start(event.context)
        self._sounding.discard(event.context)
        yield _send("audio-stop", {})
        if event.context in self._streamed:
            self._streamed.discard(event.context)
            yield _send("synthesize-stopped", {})

    def send_error(self, error: ErrorInfo, close: int | None) -> Iterator[model.DialectCommand]:
        yield _send("error", {"text": error.message, "code": error.code})


def build_info(version: str, model: str, voices: list[tuple[str, str, list[str]]]) -> Data:
    """The answer to ``describe``; a voice is its name, what it is, and its languages by their codes."""
    by_us: Data = {
        "attribution": {"name": "voicewire", "url": ""},
        "installed": True,
        "version": version,
    }
    spoken = [{"name": name, "description": about, "languages": codes, **by_us} for name, about, codes in voices]
    program = {
        "name": "voicewire",
        "description": f"voicewire, {model}",
        "voices": spoken,
        "supports_synthesize_streaming": True,
        **by_us,
    }
    return {"tts": [program]}


def _text(data: Data) -> str:
    text = data.get("text")
    if not isinstance(text, str):
        raise RemoteProtocolError("invalid_event", "text must be a text", "text")
    return text


def _name(voice: Data, field: str) -> str | None:
    found: Any = voice.get(field)
    if found is not None and not (isinstance(found, str) and len(found) <= MAX_NAME_CHARS):
        raise RemoteProtocolError("invalid_event", f"voice.{field} is no name", f"voice.{field}")
    return found or None


def _send(kind: str, data: Data) -> model.SendMessage:
    return model.SendMessage(serialize(WyomingEvent(kind, data)))


VERSION = "1.0.0"
NEWLINE = b"\n"
MAX_LINE_BYTES = 65_536
# Maximum payload, which is read and dropped.
MAX_PAYLOAD_BYTES = 1_048_576

Data = dict[str, Any]


@dataclass(frozen=True, slots=True)
class WyomingEvent:
    type: str
    data: Data = field(default_factory=dict)
    payload: bytes = b""


class WyomingHeader(msgspec.Struct, frozen=True):
    type: str
    data: Data | None = None
    data_length: int | None = None
    payload_length: int | None = None


_line: msgspec.json.Decoder[WyomingHeader] = msgspec.json.Decoder(WyomingHeader)
_data: msgspec.json.Decoder[Data] = msgspec.json.Decoder(Data)


def serialize(event: WyomingEvent) -> bytes:
    data = msgspec.json.encode(event.data) if event.data else b""
    head: Data = {"type": event.type, "version": VERSION}
    if data:
        head["data_length"] = len(data)
    if event.payload:
        head["payload_length"] = len(event.payload)
    return msgspec.json.encode(head) + NEWLINE + data + event.payload


class WyomingEventReader:
    """Bytes in pieces of any length, events out. ``push`` raises ``RemoteProtocolError``; nothing can be read then."""

    def __init__(self, max_data_bytes: int) -> None:
        self._max_data_bytes = max_data_bytes
        self._buffer = bytearray()
        # Bytes searched for the end of a line.
        self._searched = 0
        # Header whose data and payload are incomplete.
        self._line: WyomingHeader | None = None

    def push(self, piece: bytes) -> Iterator[WyomingEvent]:
        self._buffer += piece
        while (event := self._next()) is not None:
            yield event

    def _next(self) -> WyomingEvent | None:
        if self._line is None:
            self._line = self._read_line()
        if self._line is None:
            return None
        line, num_data = self._line, self._line.data_length or 0
        num_bytes = num_data + (line.payload_length or 0)
        if len(self._buffer) < num_bytes:
            return None
        data, payload = bytes(self._buffer[:num_data]), bytes(self._buffer[num_data:num_bytes])
        del self._buffer[:num_bytes]
        self._line = None
        return WyomingEvent(line.type, (line.data or {}) | (_decoded(_data, data) if data else {}), payload)

    def _read_line(self) -> WyomingHeader | None:
        end = self._buffer.find(NEWLINE, self._searched)
        length = len(self._buffer) if end < 0 else end
        _check("a line", length, MAX_LINE_BYTES)
        if end < 0:
            self._searched = length
            return None
        line: WyomingHeader = _decoded(_line, bytes(self._buffer[:end]))
        del self._buffer[: end + 1]
        self._searched = 0
        _check("data_length", line.data_length or 0, self._max_data_bytes)
        _check("payload_length", line.payload_length or 0, MAX_PAYLOAD_BYTES)
        return line


def _check(what: str, found: int, limit: int) -> None:
    if found < 0:
        raise RemoteProtocolError("invalid_event", f"{what} must be 0 or more, is {found}", what)
    if found > limit:
        raise RemoteProtocolError("message_too_big", f"{what} of {found} bytes, at most {limit} are read")


def _decoded(decoder: msgspec.json.Decoder[Any], data: bytes) -> Any:
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise RemoteProtocolError("invalid_event", str(error)) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise RemoteProtocolError("malformed_json", f"not an event of Wyoming: {error}") from None
