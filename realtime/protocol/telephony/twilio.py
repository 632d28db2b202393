"""Twilio Media Streams in both directions (``<Connect><Stream>``): JSON, mu-law at 8 kHz."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from realtime.protocol import model
from realtime.protocol.dialects.parsing import dump
from realtime.protocol.telephony import parsing
from realtime.protocol.telephony.json_stream import JsonStreamDialect, JsonStreamMessage

ENCODINGS = {"audio/x-mulaw": "mulaw"}


class TwilioMediaFormat(Struct, rename="camel"):
    encoding: str
    sample_rate: int
    channels: int = 1


class TwilioStart(Struct, rename="camel"):
    media_format: TwilioMediaFormat
    call_sid: str = ""
    stream_sid: str = ""
    custom_parameters: dict[str, object] | None = None


class TwilioMessage(JsonStreamMessage, rename="camel"):
    stream_sid: str = ""
    start: TwilioStart | None = None


class TwilioDialect(JsonStreamDialect):
    name = "twilio"
    formats = frozenset({model.TelephonyFormat()})
    messages = TwilioMessage
    _stream_sid = ""

    def begin(self, told: TwilioMessage) -> model.StreamStarted:
        start = parsing.required(told.start, "start")
        audio = start.media_format
        stream_sid = parsing.mark_name(start.stream_sid or told.stream_sid)
        line = model.TelephonyFormat(ENCODINGS.get(audio.encoding, audio.encoding), audio.sample_rate)
        started = self.start(start.call_sid or stream_sid, line, parsing.parameters(start.custom_parameters))
        self._stream_sid = stream_sid
        return started

    def media(self) -> dict[str, Any]:
        return {"event": "media", "streamSid": self._stream_sid, "media": {"payload": ""}}

    def send_mark(self, name: str) -> str:
        return dump(event="mark", streamSid=self._stream_sid, mark={"name": name})

    def send_clear(self) -> str:
        return dump(event="clear", streamSid=self._stream_sid)
