"""Asterisk's ``chan_websocket`` with ``f(json)``: control in JSON, audio in binary, which Asterisk plays."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from realtime.errors import RemoteProtocolError
from realtime.protocol.dialects.parsing import dump, parse_json
from realtime.protocol.model import Message
from realtime.protocol.telephony import base, model

FORMATS = {
    "ulaw": model.TelephonyFormat("mulaw"),
    "alaw": model.TelephonyFormat("alaw"),
    "slin": model.TelephonyFormat("pcm_s16le", 8_000),
    "slin12": model.TelephonyFormat("pcm_s16le", 12_000),
    "slin16": model.TelephonyFormat("pcm_s16le", 16_000),
    "slin24": model.TelephonyFormat("pcm_s16le", 24_000),
    "slin32": model.TelephonyFormat("pcm_s16le", 32_000),
    "slin44": model.TelephonyFormat("pcm_s16le", 44_100),
    "slin48": model.TelephonyFormat("pcm_s16le", 48_000),
}


class AsteriskMessage(Struct):
    event: str
    connection_id: str = ""
    channel_id: str = ""
    channel: str = ""
    format: str = ""
    channel_variables: dict[str, object] | None = None
    correlation_id: str = ""
    digit: str = ""


class AsteriskDialect(base.TelephonyDialect):
    name = "asterisk"
    formats = frozenset(FORMATS.values())
    subprotocol = "media"

    def receive_message(self, message: Message) -> Sequence[model.TelephonyEvent]:
        if isinstance(message, bytes):
            return [self.caller_audio(message)]
        if not message.lstrip().startswith("{"):
            raise RemoteProtocolError("malformed_json", "control messages must be JSON: dial with f(json)")
        parsed = parse_json(message, AsteriskMessage)
        match parsed.event:
            case "MEDIA_START":
                return [self._begin(parsed)]
            case "DTMF_END":
                return [model.DtmfReceived(base.digit(parsed.digit))]
            case "MEDIA_MARK_PROCESSED":
                return [model.MarkPlayed(base.mark_name(parsed.correlation_id))]
            case "MEDIA_XOFF" | "MEDIA_XON":
                return [model.FlowControl(parsed.event == "MEDIA_XOFF")]
        return []

    def _begin(self, parsed: AsteriskMessage) -> model.StreamStarted:
        line = FORMATS.get(parsed.format) or model.TelephonyFormat(parsed.format, 0)
        variables = base.parameters((parsed.channel_variables or {}) | {"channel": parsed.channel})
        return self.start(parsed.channel_id or parsed.connection_id, line, variables)

    def send_audio(self, data: bytes) -> bytes:
        return data

    def send_mark(self, name: str) -> str:
        return dump(command="MARK_MEDIA", correlation_id=name)

    def send_clear(self) -> str:
        return dump(command="FLUSH_MEDIA")

    def send_hang_up(self) -> str:
        return dump(command="HANGUP")
