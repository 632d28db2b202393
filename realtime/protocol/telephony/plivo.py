"""Plivo audio streaming (``<Stream bidirectional="true">``): JSON, mu-law at 8 kHz or L16 at 8 or 16 kHz."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from realtime.protocol.dialects.parsing import dump
from realtime.protocol.telephony import base, model
from realtime.protocol.telephony.json_stream import JsonStreamDialect, JsonStreamMessage
from realtime.protocol.telephony.twilio import TwilioMediaFormat

CONTENT_TYPES = {"mulaw": "audio/x-mulaw", "pcm_s16le": "audio/x-l16"}
ENCODINGS = {content_type: encoding for encoding, content_type in CONTENT_TYPES.items()}


class PlivoStart(Struct, rename="camel"):
    media_format: TwilioMediaFormat
    call_id: str = ""
    stream_id: str = ""


class PlivoMessage(JsonStreamMessage, rename={"stream_id": "streamId"}):
    stream_id: str = ""
    start: PlivoStart | None = None
    name: str = ""
    extra_headers: str | None = None


class PlivoDialect(JsonStreamDialect):
    name = "plivo"
    formats = frozenset(
        {
            model.TelephonyFormat("mulaw", 8_000),
            model.TelephonyFormat("pcm_s16le", 8_000),
            model.TelephonyFormat("pcm_s16le", 16_000),
        }
    )
    messages = PlivoMessage
    _stream_id = ""

    def begin(self, parsed: PlivoMessage) -> model.StreamStarted:
        start = base.required(parsed.start, "start")
        audio = start.media_format
        stream_id = base.mark_name(start.stream_id or parsed.stream_id)
        line = model.TelephonyFormat(ENCODINGS.get(audio.encoding, audio.encoding), audio.sample_rate)
        headers = {"extra_headers": parsed.extra_headers} if parsed.extra_headers else {}
        started = self.start(start.call_id or stream_id, line, base.parameters(headers))
        self._stream_id = stream_id
        return started

    def receive_more(self, parsed: PlivoMessage) -> Sequence[model.TelephonyEvent]:
        return [model.MarkPlayed(base.mark_name(parsed.name))] if parsed.event == "playedStream" else []

    def media(self) -> dict[str, Any]:
        line = self.require_start("audio")
        media = {"contentType": CONTENT_TYPES[line.encoding], "sampleRate": line.sample_rate, "payload": ""}
        return {"event": "playAudio", "streamId": self._stream_id, "media": media}

    def send_mark(self, name: str) -> str:
        return dump(event="checkpoint", streamId=self._stream_id, name=name)

    def send_clear(self) -> str:
        return dump(event="clearAudio", streamId=self._stream_id)
