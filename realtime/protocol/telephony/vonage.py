"""Vonage's WebSocket endpoint of a call: control in JSON, audio in binary, L16 little-endian at 8, 16 or 24 kHz."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from realtime.errors import RemoteProtocolError
from realtime.protocol.dialects.parsing import dump, parse_json
from realtime.protocol.model import Message
from realtime.protocol.telephony import base, model
from realtime.protocol.telephony.json_stream import DtmfMessage

CONTENT_TYPE = re.compile(r"audio/l16;\s*rate=(\d{1,6})", re.IGNORECASE)
RESERVED_FIELDS = ("event", "content-type")


class VonageNotify(Struct):
    mark: str = ""


class VonageMessage(Struct):
    event: str
    content_type: str = msgspec.field(default="", name="content-type")
    digit: str = ""
    # Place of the digits in older versions.
    dtmf: DtmfMessage | None = None
    payload: VonageNotify | None = None


class VonageDialect(base.TelephonyDialect):
    name = "vonage"
    formats = frozenset(model.TelephonyFormat("pcm_s16le", rate) for rate in (8_000, 16_000, 24_000))

    def __init__(self, call_id: str) -> None:
        """The call's id is among the headers that the application chose, or else this one."""
        self._call_id = call_id

    def receive_message(self, message: Message) -> Sequence[model.TelephonyEvent]:
        if isinstance(message, bytes):
            return [self.caller_audio(message)]
        parsed = parse_json(message, VonageMessage)
        match parsed.event:
            case "websocket:connected":
                return [self._begin(parsed, parse_json(message, dict[str, object]))]
            case "websocket:dtmf":
                return [model.DtmfReceived(base.digit(parsed.digit or (parsed.dtmf.digit if parsed.dtmf else "")))]
            case "websocket:notify" if parsed.payload is not None and parsed.payload.mark:
                return [model.MarkPlayed(base.mark_name(parsed.payload.mark))]
        return []

    def _begin(self, parsed: VonageMessage, content: dict[str, object]) -> model.StreamStarted:
        found = CONTENT_TYPE.fullmatch(parsed.content_type.strip())
        if found is None:
            expected = f"content-type must be audio/l16;rate=N, is {parsed.content_type[:40]!r}"
            raise RemoteProtocolError("unsupported_format", expected, "content-type")
        headers = base.parameters({name: value for name, value in content.items() if name not in RESERVED_FIELDS})
        call_id = headers.get("uuid") or headers.get("call_uuid") or self._call_id
        return self.start(call_id, model.TelephonyFormat("pcm_s16le", int(found[1])), headers)

    def send_audio(self, data: bytes) -> bytes:
        return data

    def send_mark(self, name: str) -> str:
        return dump(action="notify", payload={"mark": name})

    def send_clear(self) -> str:
        return dump(action="clear")
