"""What Deepgram's wires share: how a query is read, and the names of its models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.api import ErrorInfo
from realtime.errors import RemoteProtocolError
from realtime.protocol.model import RequestedFormat, SpeechOptions

ENCODINGS = {"linear16": "pcm_s16le", "mulaw": "mulaw", "alaw": "alaw"}
# Taken when none is named.
RATES = {
    "linear16": 24_000,
    "mulaw": 8_000,
    "alaw": 8_000,
    "mp3": 22_050,
    "opus": 48_000,
    "flac": 24_000,
    "aac": 22_050,
}
FAMILIES = ("aura", "aura-2", "flux")
MAX_SPEED = 10.0


def parse_options(query: Mapping[str, str], format: RequestedFormat) -> SpeechOptions:
    """Raises ``RemoteProtocolError``."""
    voice, language = voice_and_language(query.get("model", ""))
    return SpeechOptions(voice=voice, language=language, format=format, speed=_speed(query.get("speed")))


def voice_and_language(model: str) -> tuple[str | None, str | None]:
    """``aura-2-thalia-en`` is the voice thalia, English; any other name is a voice as it is."""
    head, _, language = model.rpartition("-")
    family, _, voice = head.rpartition("-")
    if family in FAMILIES and voice:
        return voice, language
    return model or None, None


def socket_format(query: Mapping[str, str]) -> RequestedFormat:
    """Raises ``RemoteProtocolError``."""
    encoding = query.get("encoding") or "linear16"
    if encoding not in ENCODINGS:
        raise unsupported("encoding", tuple(ENCODINGS), encoding)
    return RequestedFormat(ENCODINGS[encoding], sample_rate(query, encoding))


def sample_rate(query: Mapping[str, str], encoding: str) -> int:
    return number(query, "sample_rate") or RATES[encoding]


def number(query: Mapping[str, str], name: str) -> int | None:
    """Raises ``RemoteProtocolError``."""
    text = query.get(name)
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise RemoteProtocolError("invalid_request", f"{name} must be a whole number, is {text[:20]!r}", name)
    return int(text)


def unsupported(name: str, known: tuple[str, ...], found: str) -> RemoteProtocolError:
    message = f"{name} must be one of {', '.join(known)}, is {found[:40]!r}"
    return RemoteProtocolError("unsupported_format", message, name)


def refusal(error: ErrorInfo) -> tuple[dict[str, Any], dict[str, str]]:
    """Body and headers of an HTTP answer."""
    return {"err_code": error.code.upper(), "err_msg": error.message, "request_id": None}, {"dg-error": error.message}


def _speed(text: str | None) -> float:
    try:
        speed = float(text) if text else 1.0
    except ValueError:
        speed = -1.0
    if not 0 < speed <= MAX_SPEED:
        raise RemoteProtocolError(
            "invalid_request", f"speed must be a number above 0, is {(text or '')[:20]!r}", "speed"
        )
    return speed
