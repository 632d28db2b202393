"""Short-lived tokens for browsers: nothing is stored, and every process that has the server's secret can check them.

A token names its API key, what it may be used for and when it expires. It ends with its key. The secret is the
configured one, or one that is created once in a file.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import secrets
import stat
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from realtime.config import ConfigError
from sessions.voices.voice_file import data_folder

FILE_NAME = "token-secret"
NUM_RANDOM_BYTES = 32
MIN_CHARS = 32
PREFIX = "vwt2"


def load_token_secret(setting: str | None) -> bytes:
    """Return ``auth.token_secret``, or without it the content of the secret's file. Raises ``ConfigError``."""
    if setting is not None:
        return _checked(setting.strip(), "auth.token_secret")
    path = data_folder() / FILE_NAME
    try:
        with suppress(FileExistsError):
            if not path.exists():
                _create(path)
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise ConfigError(f"{path} signs browser tokens and other users may read it; chmod 600, or delete it")
        return _checked(path.read_text(encoding="ascii").strip(), str(path))
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"the secret for browser tokens: {error}; auth.token_secret can hold it instead") from None


def _create(path: Path) -> None:
    """Appear whole or not at all: several processes may start at once. Raises ``FileExistsError`` or ``OSError``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{FILE_NAME}-", dir=path.parent)  # created with 0600
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(NUM_RANDOM_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)
    finally:
        Path(temporary).unlink()


def _checked(secret: str, origin: str) -> bytes:
    if len(secret) < MIN_CHARS:
        raise ConfigError(f"{origin} has {len(secret)} characters, at least {MIN_CHARS} are needed")
    return secret.encode()


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
