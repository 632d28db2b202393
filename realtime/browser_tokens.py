"""Short-lived tokens for browsers: nothing is stored, and every process that has the server's secret can check them.

A token names its API key, what it may be used for and when it expires. It ends with its key. The secret is the
configured one, or one that is created once in a file.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from realtime.stored_secret import SecretKind, load_secret

SECRET = SecretKind("auth.token_secret", "token-secret", "signs browser tokens", "the secret for browser tokens")
PREFIX = "vwt2"


def load_token_secret(setting: str | None) -> bytes:
    """Return ``auth.token_secret``, or without it the content of the secret's file. Raises ``ConfigError``."""
    return load_secret(SECRET, setting)


class TokenScope(StrEnum):
    """Permitted use of a token. An API key is good for all of it, and for what no token can do."""

    SPEECH = "speech"
    CALLS = "calls"


class BrowserToken(NamedTuple):
    key_name: str
    # Unix time.
    expires_s: int
    scopes: frozenset[TokenScope]
    signed: str
    signature: str

    def is_genuine(self, secret: bytes) -> bool:
        return hmac.compare_digest(self.signature, _signature(self.signed, secret))


def signing_key(server_secret: bytes, key_digest: bytes) -> bytes:
    """Derive the secret that signs the tokens of one API key.

    The stored digest of a key is not a secret: reading the keys file must not be enough to sign.
    """
    return hmac.digest(server_secret, b"voicewire browser token" + key_digest, hashlib.sha256)


def issue(key_name: str, expires_s: int, secret: bytes, scopes: Iterable[TokenScope] = (TokenScope.SPEECH,)) -> str:
    """Letters, digits, ``_ - .`` only, so that it can stand in a URL and in a sub-protocol."""
    signed = f"{PREFIX}.{_encode(key_name.encode())}.{expires_s}.{'-'.join(sorted(scopes))}"
    return f"{signed}.{_signature(signed, secret)}"


def parse(text: str) -> BrowserToken | None:
    """Return a token's claims; ``None`` if it is none. ``is_genuine`` verifies them."""
    signed, _, signature = text.rpartition(".")
    parts = signed.split(".")
    if len(parts) != 4 or parts[0] != PREFIX or not (parts[2].isascii() and parts[2].isdigit()):
        return None
    try:
        name = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)).decode()
        scopes = frozenset(map(TokenScope, parts[3].split("-")))
        return BrowserToken(name, int(parts[2]), scopes, signed, signature) if signature.isascii() else None
    except (binascii.Error, ValueError):
        return None


def _signature(signed: str, secret: bytes) -> str:
    return _encode(hmac.digest(secret, signed.encode(), hashlib.sha256))


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
