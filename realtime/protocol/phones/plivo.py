"""Plivo audio streaming (``<Stream bidirectional="true">``): JSON, mu-law at 8 kHz or L16 at 8 or 16 kHz."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from realtime.protocol.dialects.parsing import dump, parse_json, text_only
from realtime.protocol.phones import base, reading
from realtime.protocol.phones.twilio import Dtmf, Media, MediaFormat

CONTENT_TYPES = {"mulaw": "audio/x-mulaw", "pcm_s16le": "audio/x-l16"}
ENCODINGS = {content_type: encoding for encoding, content_type in CONTENT_TYPES.items()}


class Start(Struct, rename="camel"):
    media_format: MediaFormat
    call_id: str = ""
    stream_id: str = ""


class Told(Struct, rename="camel"):
    event: str
    stream_id: str = ""
    start: Start | None = None
    media: Media | None = None
    dtmf: Dtmf | None = None
    name: str = ""
    extra_headers: str = ""


class Plivo(base.PhoneDialect):
    name = "plivo"
    lines = frozenset(
        {
            base.LineFormat("mulaw", 8_000),
            base.LineFormat("pcm_s16le", 8_000),
            base.LineFormat("pcm_s16le", 16_000),
        }
    )
    _stream_id = ""

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
            case "playedStream":
                return [base.MarkReached(reading.mark_name(told.name))]
            case "stop":
                return [base.HungUp()]
        return []

    def _begin(self, told: Told, start: Start) -> base.Started:
        audio = start.media_format
        stream_id = start.stream_id or told.stream_id
        line = base.LineFormat(ENCODINGS.get(audio.encoding, audio.encoding), audio.sample_rate)
        headers = {"extra_headers": told.extra_headers} if told.extra_headers else {}
        started = self.start(start.call_id or stream_id, line, reading.parameters(headers))
        self._stream_id = reading.mark_name(stream_id)
        return started

    def audio(self, data: bytes) -> str:
        line = self.require_start("audio")
        media = {
            "contentType": CONTENT_TYPES[line.encoding],
            "sampleRate": line.sample_rate,
            "payload": reading.encoded(data),
        }
        return dump(event="playAudio", media=media)

    def mark(self, name: str) -> str:
        return dump(event="checkpoint", streamId=self._stream_id, name=name)

    def clear(self) -> str:
        return dump(event="clearAudio", streamId=self._stream_id)
