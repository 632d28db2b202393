"""The API keys of a server, from a keys file and from a setting."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from realtime.auth import Authenticator, Principal, key_digest
from realtime.browser_tokens import load_token_secret
from realtime.config import ConfigError
from realtime.config_sections import AuthSettings
from sessions.quotas import KeyQuotas

MIN_KEY_CHARS = 16

Limit = Annotated[int, Meta(ge=0)]
# The largest fits a counter of 64 bits in milliseconds.
Quota = Annotated[int, Meta(ge=1, le=10**12)]


class KeyEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A ``[[keys]]`` entry of a keys file: the key, or its SHA-256 in hexadecimal."""

    name: Annotated[str, Meta(min_length=1)]
    key: str | None = None
    sha256: str | None = None
    max_connections: Limit | None = None
    max_active_responses: Limit | None = None
    max_chars_per_minute: Quota | None = None
    max_chars_per_day: Quota | None = None
    max_audio_s_per_minute: Quota | None = None
    max_audio_s_per_day: Quota | None = None
    priority: Literal["live", "bulk"] = "live"

    @property
    def quotas(self) -> KeyQuotas:
        return KeyQuotas(
            max_chars_per_minute=self.max_chars_per_minute,
            max_chars_per_day=self.max_chars_per_day,
            max_audio_s_per_minute=self.max_audio_s_per_minute,
            max_audio_s_per_day=self.max_audio_s_per_day,
        )


class KeysFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keys: tuple[KeyEntry, ...]


def load_authenticator(settings: AuthSettings) -> Authenticator:
    """Load the API keys; raises ``ConfigError``, whose message names the entry and never the key."""
    keys = [*_from_file(settings.keys_file), *_from_text(settings.api_keys)]
    given = settings.keys_file is not None or settings.api_keys is not None
    if given and not keys:
        raise ConfigError("auth: a source of API keys is given and holds none; without any, leave it out")
    names = [caller.name for _, caller in keys]
    if len(set(names)) < len(names):
        raise ConfigError("auth: two API keys have the same name")
    if len({digest for digest, _ in keys}) < len(keys):
        raise ConfigError("auth: two names have the same API key")
    secret = load_token_secret(settings.token_secret) if keys or settings.token_secret is not None else None
    return Authenticator(keys, secret, settings.max_token_ttl_s)


def _from_file(path: str | None) -> Iterator[tuple[bytes, Principal]]:
    if path is None:
        return
    try:
        content = msgspec.convert(tomllib.loads(Path(path).read_text(encoding="utf-8")), KeysFile)
    except (OSError, UnicodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"auth.keys_file {path}: {error}") from None
    for entry in content.keys:
        yield (
            _entry_digest(entry),
            Principal(
                entry.name,
                entry.max_connections,
                entry.max_active_responses,
                quotas=entry.quotas,
                is_bulk=entry.priority == "bulk",
            ),
        )


def _from_text(text: str | None) -> Iterator[tuple[bytes, Principal]]:
    for number, part in enumerate(text.split(",") if text else (), start=1):
        name, colon, key = part.strip().partition(":")
        if not (colon and name):
            raise ConfigError(f"auth.api_keys: entry {number} is not of the form name:key")
        yield _entry_digest(KeyEntry(name=name, key=key)), Principal(name)


def _entry_digest(entry: KeyEntry) -> bytes:
    if (entry.key is None) == (entry.sha256 is None):
        raise ConfigError(f"auth: {entry.name} needs either key or sha256")
    if entry.key is not None:
        if len(entry.key) < MIN_KEY_CHARS:
            raise ConfigError(
                f"auth: the key of {entry.name} has {len(entry.key)} characters, at least {MIN_KEY_CHARS}"
            )
        if not all("!" <= character <= "~" for character in entry.key):
            raise ConfigError(
                f"auth: the key of {entry.name} holds what is no visible ASCII, which headers cannot carry"
            )
        return key_digest(entry.key)
    try:
        digest = bytes.fromhex(entry.sha256 or "")
    except ValueError:
        digest = b""
    if len(digest) != hashlib.sha256().digest_size:
        raise ConfigError(f"auth: sha256 of {entry.name} is not 64 hexadecimal digits")
    return digest
