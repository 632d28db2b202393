"""What the providers' JSON messages have in common: audio in base64, digits, names, parameters."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import TypeVar

from realtime.errors import RemoteProtocolError
from realtime.protocol.telephony.base import MAX_NAME_CHARS

T = TypeVar("T")

DIGIT = re.compile(r"[0-9A-D*#]")
MAX_PARAMETER_CHARS = 1_024


def required(part: T | None, name: str) -> T:
    """Raises ``RemoteProtocolError``."""
    if part is None:
        raise RemoteProtocolError("invalid_event", f"Object missing required field `{name}`", name)
    return part


def payload(text: str) -> bytes:
    """Raises ``RemoteProtocolError``."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise RemoteProtocolError("invalid_event", "payload is not base64", "payload") from None


def digit(text: str) -> str:
    """Raises ``RemoteProtocolError``."""
    pressed = text.strip().upper()
    if DIGIT.fullmatch(pressed) is None:
        raise RemoteProtocolError("invalid_event", f"no key of a telephone: {text[:8]!r}", "digit")
    return pressed


def mark_name(text: str) -> str:
    """Raises ``RemoteProtocolError``."""
    if len(text) > MAX_NAME_CHARS:
        found = f"a mark has at most {MAX_NAME_CHARS} characters, this one {len(text)}"
        raise RemoteProtocolError("invalid_event", found, "name")
    return text


def parameters(given: Mapping[str, object] | None) -> dict[str, str]:
    """As texts, the long ones cut."""
    return {name[:MAX_NAME_CHARS]: str(value)[:MAX_PARAMETER_CHARS] for name, value in (given or {}).items()}


def encode_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
