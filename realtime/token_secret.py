"""The server's secret that signs browser tokens: the one that is configured, or one that is created once in a file."""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from realtime.config import ConfigError
from sessions.voices.voice_file import data_folder

FILE_NAME = "token-secret"
NUM_RANDOM_BYTES = 32
MIN_CHARS = 32


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
