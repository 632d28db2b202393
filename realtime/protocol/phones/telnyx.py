"""Telnyx media streaming (``stream_bidirectional_mode=rtp``): JSON, mu-law or A-law at 8 kHz."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from realtime.protocol.dialects.parsing import dump
from realtime.protocol.errors import RemoteProtocolError
from realtime.protocol.phones import base, reading
from realtime.protocol.phones.json_stream import JsonStream, Told

ENCODINGS = {"PCMU": "mulaw", "PCMA": "alaw"}


class MediaFormat(Struct):
    encoding: str
    sample_rate: int
    channels: int = 1


class Start(Struct):
    media_format: MediaFormat
    call_control_id: str = ""
    custom_parameters: dict[str, object] | None = None


class Fault(Struct):
    title: str = ""
    code: int = 0


class TelnyxTold(Told):
    stream_id: str = ""
    start: Start | None = None
    payload: Fault | None = None


class Telnyx(JsonStream):
    name = "telnyx"
    lines = frozenset({base.LineFormat("mulaw"), base.LineFormat("alaw")})
    messages = TelnyxTold

    def begin(self, told: TelnyxTold) -> base.Started:
        start = reading.required(told.start, "start")
        audio = start.media_format
        line = base.LineFormat(ENCODINGS.get(audio.encoding, audio.encoding), audio.sample_rate)
        return self.start(start.call_control_id or told.stream_id, line, reading.parameters(start.custom_parameters))

    def receive_more(self, told: TelnyxTold) -> Sequence[base.PhoneEvent]:
        if told.event == "error":
            fault = told.payload or Fault()
            raise RemoteProtocolError("invalid_event", f"Telnyx reports error {fault.code}: {fault.title[:100]}")
        return []

    def media(self) -> dict[str, Any]:
        return {"event": "media", "media": {"payload": ""}}

    def mark(self, name: str) -> str:
        return dump(event="mark", mark={"name": name})

    def clear(self) -> str:
        return dump(event="clear")
