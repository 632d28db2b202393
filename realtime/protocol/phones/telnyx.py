"""Telnyx media streaming (``stream_bidirectional_mode=rtp``): JSON, mu-law or A-law at 8 kHz."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from realtime.protocol.dialects.parsing import dump, parse_json, text_only
from realtime.protocol.errors import RemoteProtocolError
from realtime.protocol.phones import base, reading
from realtime.protocol.phones.twilio import Dtmf, Mark, Media

ENCODINGS = {"PCMU": "mulaw", "PCMA": "alaw"}


class MediaFormat(Struct):
    encoding: str
    sample_rate: int
    channels: int = 1


class Start(Struct):
    media_format: MediaFormat
    call_control_id: str = ""
    custom_parameters: dict[str, object] = field(default_factory=dict)


class Fault(Struct):
    title: str = ""
    code: int = 0


class Told(Struct):
    event: str
    stream_id: str = ""
    start: Start | None = None
    media: Media | None = None
    dtmf: Dtmf | None = None
    mark: Mark | None = None
    payload: Fault | None = None


class Telnyx(base.PhoneDialect):
    name = "telnyx"
    lines = frozenset({base.LineFormat("mulaw"), base.LineFormat("alaw")})

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
            case "error":
                fault = told.payload or Fault()
                raise RemoteProtocolError("invalid_event", f"Telnyx reports error {fault.code}: {fault.title[:100]}")
        return []

    def _begin(self, told: Told, start: Start) -> base.Started:
        audio = start.media_format
        line = base.LineFormat(ENCODINGS.get(audio.encoding, audio.encoding), audio.sample_rate)
        return self.start(start.call_control_id or told.stream_id, line, reading.parameters(start.custom_parameters))

    def audio(self, data: bytes) -> str:
        return dump(event="media", media={"payload": reading.encoded(data)})

    def mark(self, name: str) -> str:
        return dump(event="mark", mark={"name": name})

    def clear(self) -> str:
        return dump(event="clear")
