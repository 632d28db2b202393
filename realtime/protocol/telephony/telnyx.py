"""Telnyx media streaming (``stream_bidirectional_mode=rtp``): JSON, mu-law or A-law at 8 kHz."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from realtime.errors import RemoteProtocolError
from realtime.protocol.dialects.parsing import dump
from realtime.protocol.telephony import base, model
from realtime.protocol.telephony.json_stream import JsonStreamDialect, JsonStreamMessage

ENCODINGS = {"PCMU": "mulaw", "PCMA": "alaw"}


class TelnyxMediaFormat(Struct):
    encoding: str
    sample_rate: int
    channels: int = 1


class TelnyxStart(Struct):
    media_format: TelnyxMediaFormat
    call_control_id: str = ""
    custom_parameters: dict[str, object] | None = None


class TelnyxError(Struct):
    title: str = ""
    code: int = 0


class TelnyxMessage(JsonStreamMessage):
    stream_id: str = ""
    start: TelnyxStart | None = None
    payload: TelnyxError | None = None


class TelnyxDialect(JsonStreamDialect):
    name = "telnyx"
    formats = frozenset({model.TelephonyFormat("mulaw"), model.TelephonyFormat("alaw")})
    messages = TelnyxMessage

    def begin(self, parsed: TelnyxMessage) -> model.StreamStarted:
        start = base.required(parsed.start, "start")
        audio = start.media_format
        line = model.TelephonyFormat(ENCODINGS.get(audio.encoding, audio.encoding), audio.sample_rate)
        return self.start(start.call_control_id or parsed.stream_id, line, base.parameters(start.custom_parameters))

    def receive_more(self, parsed: TelnyxMessage) -> Sequence[model.TelephonyEvent]:
        if parsed.event == "error":
            fault = parsed.payload or TelnyxError()
            raise RemoteProtocolError("invalid_event", f"Telnyx reports error {fault.code}: {fault.title[:100]}")
        return []

    def media(self) -> dict[str, Any]:
        return {"event": "media", "media": {"payload": ""}}

    def send_mark(self, name: str) -> str:
        return dump(event="mark", mark={"name": name})

    def send_clear(self) -> str:
        return dump(event="clear")
