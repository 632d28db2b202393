"""Secrets of a server: the configured ones, or ones that are created once in files of the user's data folder."""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from realtime.config import ConfigError
from sessions.owned_files import data_folder

NUM_RANDOM_BYTES = 32
MIN_CHARS = 32


class SecretKind(NamedTuple):
    """A secret of the server, with the parts of its error messages."""

    setting: str
    file_name: str
    # Such as "signs browser tokens".
    purpose: str
    # Such as "the secret for browser tokens".
    title: str


class SecretNotStored(ConfigError):
    """The folder of the secret cannot be written, and no setting holds the secret."""


def load_secret(kind: SecretKind, setting: str | None, creates: bool = True) -> bytes:
    """Return the value of the setting, or without it the content of the secret's file. With ``creates`` a missing file
    is created. Raises ``ConfigError``, which is ``SecretNotStored`` where the file cannot be created.
    """
    if setting is not None:
        return checked_secret(setting.strip(), kind.setting)
    path = data_folder() / kind.file_name
    try:
        if creates and not path.exists():
            _create(path, kind)
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise ConfigError(f"{path} {kind.purpose} and other users may read it; chmod 600, or delete it")
        return checked_secret(path.read_text(encoding="ascii").strip(), str(path))
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{kind.title}: {error}; {kind.setting} can hold it instead") from None


def _create(path: Path, kind: SecretKind) -> None:
    """Appear whole or not at all: several processes may start at once. Raises ``SecretNotStored``."""
    try:
        _write(path)
    except OSError as error:
        raise SecretNotStored(f"{kind.title}: {error}; {kind.setting} can hold it instead") from None


def _write(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)  # created with 0600
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(NUM_RANDOM_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        Path(temporary).unlink()


def checked_secret(secret: str, origin: str) -> bytes:
    """Return the bytes of a secret. Raises ``ConfigError``, which names the origin, for a short one."""
    if len(secret) < MIN_CHARS:
        raise ConfigError(f"{origin} has {len(secret)} characters, at least {MIN_CHARS} are needed")
    return secret.encode()
