"""Twilio Media Streams in both directions (``<Connect><Stream>``): JSON, mu-law at 8 kHz."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from realtime.protocol.dialects.parsing import dump, parse_json, text_only
from realtime.protocol.phones import base, reading

ENCODINGS = {"audio/x-mulaw": "mulaw"}


class MediaFormat(Struct, rename="camel"):
    encoding: str
    sample_rate: int
    channels: int = 1


class Start(Struct, rename="camel"):
    media_format: MediaFormat
    call_sid: str = ""
    stream_sid: str = ""
    custom_parameters: dict[str, object] = field(default_factory=dict)


class Media(Struct):
    payload: str
    track: str = "inbound"
    chunk: int | None = None


class Dtmf(Struct):
    digit: str


class Mark(Struct):
    name: str


class Told(Struct, rename="camel"):
    event: str
    stream_sid: str = ""
    start: Start | None = None
    media: Media | None = None
    dtmf: Dtmf | None = None
    mark: Mark | None = None


class Twilio(base.PhoneDialect):
    name = "twilio"
    lines = frozenset({base.LineFormat()})
    _stream_sid = ""

    def receive(self, message: base.Message) -> Sequence[base.PhoneEvent]:
        told = parse_json(text_only(message), Told)
        match told.event:
            case "start":
                return [self._begin(told, reading.required(told.start, "start"))]
            case "media":
                media = reading.required(told.media, "media")
                audio = self.heard(reading.payload(media.payload), media.chunk)
                return [audio] if media.track == "inbound" else []
            case "dtmf":
                return [base.Pressed(reading.digit(reading.required(told.dtmf, "dtmf").digit))]
            case "mark":
                return [base.MarkReached(reading.mark_name(reading.required(told.mark, "mark").name))]
            case "stop":
                return [base.HungUp()]
        return []

    def _begin(self, told: Told, start: Start) -> base.Started:
        audio = start.media_format
        stream_sid = start.stream_sid or told.stream_sid
        line = base.LineFormat(ENCODINGS.get(audio.encoding, audio.encoding), audio.sample_rate)
        started = self.start(start.call_sid or stream_sid, line, reading.parameters(start.custom_parameters))
        self._stream_sid = reading.mark_name(stream_sid)
        return started

    def audio(self, data: bytes) -> str:
        return dump(event="media", streamSid=self._stream_sid, media={"payload": reading.encoded(data)})

    def mark(self, name: str) -> str:
        return dump(event="mark", streamSid=self._stream_sid, mark={"name": name})

    def clear(self) -> str:
        return dump(event="clear", streamSid=self._stream_sid)
