"""Short-lived tokens for browsers: signed with the digest of an API key, so that nothing is stored and every process
of a server knows them. A token speaks for its key until it expires, and dies with it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import NamedTuple

PREFIX = "vwt1"


class Token(NamedTuple):
    key_name: str
    expires_s: int
    """Unix time."""
    signed: str
    signature: str

    def is_genuine(self, secret: bytes) -> bool:
        return hmac.compare_digest(self.signature, _signature(self.signed, secret))


def mint(key_name: str, expires_s: int, secret: bytes) -> str:
    """Letters, digits, ``_ - .`` only, so that it can stand in a URL and in a sub-protocol."""
    signed = f"{PREFIX}.{_encode(key_name.encode())}.{expires_s}"
    return f"{signed}.{_signature(signed, secret)}"


def read(text: str) -> Token | None:
    """What a token claims; ``None`` if it is none. Whether it is true, ``is_genuine`` tells."""
    signed, _, signature = text.rpartition(".")
    parts = signed.split(".")
    if len(parts) != 3 or parts[0] != PREFIX or not (parts[2].isascii() and parts[2].isdigit()):
        return None
    try:
        name = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)).decode()
        return Token(name, int(parts[2]), signed, signature) if signature.isascii() else None
    except (binascii.Error, ValueError):
        return None


def _signature(signed: str, secret: bytes) -> str:
    return _encode(hmac.digest(secret, signed.encode(), hashlib.sha256))


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
