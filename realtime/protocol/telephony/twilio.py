"""Twilio Media Streams in both directions (``<Connect><Stream>``), and the signature of Twilio's requests.

JSON, mu-law at 8 kHz.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from msgspec import Struct

from realtime.protocol.dialects.parsing import dump
from realtime.protocol.telephony import base, model
from realtime.protocol.telephony.json_stream import JsonStreamDialect, JsonStreamMessage

ENCODINGS = {"audio/x-mulaw": "mulaw"}
DEFAULT_PORTS = {"https": 443, "http": 80, "wss": 443, "ws": 80}


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

    def begin(self, parsed: TwilioMessage) -> model.StreamStarted:
        start = base.required(parsed.start, "start")
        audio = start.media_format
        stream_sid = base.mark_name(start.stream_sid or parsed.stream_sid)
        line = model.TelephonyFormat(ENCODINGS.get(audio.encoding, audio.encoding), audio.sample_rate)
        started = self.start(start.call_sid or stream_sid, line, base.parameters(start.custom_parameters))
        self._stream_sid = stream_sid
        return started

    def media(self) -> dict[str, Any]:
        return {"event": "media", "streamSid": self._stream_sid, "media": {"payload": ""}}

    def send_mark(self, name: str) -> str:
        return dump(event="mark", streamSid=self._stream_sid, mark={"name": name})

    def send_clear(self) -> str:
        return dump(event="clear", streamSid=self._stream_sid)


def sign(token: str, url: str, fields: Mapping[str, str] | None = None) -> str:
    """Check ``X-Twilio-Signature``. ``fields`` are those of a form that is posted; a WebSocket has none."""
    text = url + "".join(name + value for name, value in sorted((fields or {}).items()))
    return base64.b64encode(hmac.digest(token.encode(), text.encode(), hashlib.sha1)).decode()


def is_signed(token: str, url: str, signature: str, fields: Mapping[str, str] | None = None) -> bool:
    """Return whether the signature is Twilio's for this URL, with or without port and final slash.

    A malformed URL is not signed. A signature is valid for its URL at any time and any number of uses, so it needs TLS.
    """
    given = signature.encode("utf-8", "surrogateescape")
    try:
        known = list(url_variants(url))
    except ValueError:
        return False
    genuine = [hmac.compare_digest(sign(token, spelt, fields).encode(), given) for spelt in known]
    return any(genuine)


def url_variants(url: str) -> Iterator[str]:
    parts = urlsplit(url)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    port = parts.port or DEFAULT_PORTS.get(parts.scheme, 443)
    for place in dict.fromkeys((parts.netloc, host, f"{host}:{port}")):
        spelt = urlunsplit(parts._replace(netloc=place))
        yield spelt
        if parts.scheme in ("ws", "wss") and not parts.path.endswith("/"):
            yield urlunsplit(parts._replace(netloc=place, path=parts.path + "/"))
