"""JSON of vendors' clients, read as structs; what a struct does not know is passed over."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from realtime.errors import RemoteProtocolError
from realtime.protocol.native import decode_json

if TYPE_CHECKING:
    from realtime.protocol.model import Message

T = TypeVar("T")

MAX_CONTEXT_ID_CHARS = 256
SENTENCE_ENDS = ".!?…"
CLOSERS = "\"'”’)]»"
# Of the 123 that a close frame can hold.
MAX_REASON_BYTES = 120
MAX_INTEGER = 10**18


def parse_json(message: Message, kind: type[T]) -> T:
    """Read a text message, or the body of a request. Raises ``RemoteProtocolError``."""
    return decode_json(lambda data: msgspec.json.decode(data, type=kind, strict=False), message)


def text_only(message: Message) -> str:
    """Return a text message; raises ``RemoteProtocolError`` for a binary one."""
    if isinstance(message, bytes):
        raise RemoteProtocolError("binary_not_accepted", "this wire takes text messages only")
    return message


def require_context_id(context: str) -> str:
    """Check the length of a context id; raises ``RemoteProtocolError``."""
    if len(context) > MAX_CONTEXT_ID_CHARS:
        found = f"context_id has {len(context)} characters"
        raise RemoteProtocolError("invalid_event", f"{found}, at most {MAX_CONTEXT_ID_CHARS}", "context_id")
    return context


def integer(query: Mapping[str, str], name: str, low: int = -MAX_INTEGER, high: int = MAX_INTEGER) -> int | None:
    """Parse a whole number of a query; raises ``RemoteProtocolError``, which names parameter, range and value."""
    text = query.get(name)
    if not text:
        return None
    if not (re.fullmatch(r"-?\d{1,18}", text, re.ASCII) and low <= int(text) <= high):
        found = f"{name} must be a whole number from {low} to {high}, is {text[:40]!r}"
        raise RemoteProtocolError("invalid_request", found, name)
    return int(text)


def unsupported_format(name: str, known: Iterable[str], found: str) -> RemoteProtocolError:
    message = f"{name} must be one of {', '.join(known)}, is {found[:40]!r}"
    return RemoteProtocolError("unsupported_format", message, name)


def dump(**fields: Any) -> str:
    """A JSON message."""
    return json.dumps(fields, separators=(",", ":"))


def encode_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def close_reason(text: str) -> str:
    """Return the text, cut to what a close frame can hold."""
    return text.encode()[:MAX_REASON_BYTES].decode(errors="ignore")


def is_true(text: str | None) -> bool:
    """A flag in a query."""
    return (text or "").lower() in ("true", "1", "yes", "on")


def with_sentence_space(before: str, text: str) -> str:
    """``text`` as it continues ``before``: with a space in front where one sentence ends and another begins.

    Tokens are left as they are (``3.`` ``14``, ``example.`` ``com``): what follows must look like a sentence, with a
    capital or with words.
    """
    ends = before.rstrip(CLOSERS)[-1:]
    if not ends or ends not in SENTENCE_ENDS or not text or text[0].isspace():
        return text
    begins = text[0].isupper() or (
        text[0] not in SENTENCE_ENDS and any(character.isspace() for character in text.strip())
    )
    return f" {text}" if begins else text
