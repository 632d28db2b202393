"""The watermark of a deployment: its key, which is created once, and its payload."""

from __future__ import annotations

import hashlib
import logging
import secrets

from realtime.config_sections import WatermarkSettings
from realtime.stored_secret import NUM_RANDOM_BYTES, SecretKind, SecretNotStored, load_secret
from sessions.audio.watermark.embedder import Watermark

log = logging.getLogger("voicewire.watermark")

KEY = SecretKind("watermark.key", "watermark-key", "marks speech", "the key of the watermark")


def load_watermark(settings: WatermarkSettings) -> Watermark | None:
    """Return the watermark of all speech; ``None`` if it is off. Raises ``ConfigError``.

    Where no key can be stored, speech is marked with one of this process."""
    if not settings.enabled:
        return None
    key = load_or_draw_key(settings.key)
    return Watermark(key, default_payload(key) if settings.payload is None else settings.payload)


def load_or_draw_key(setting: str | None) -> bytes:
    """As ``load_key``; where no key can be stored, return a new one at each call."""
    try:
        return load_key(setting)
    except SecretNotStored as error:
        log.warning("marking speech with a key of this process alone: %s", error)
        return secrets.token_hex(NUM_RANDOM_BYTES).encode()


def load_key(setting: str | None, creates: bool = True) -> bytes:
    """Return the key, from the setting or from its file. Raises ``ConfigError``."""
    return load_secret(KEY, setting, creates)


def default_payload(key: bytes) -> int:
    """32 bits that differ between keys and reveal nothing of them."""
    return int.from_bytes(hashlib.sha256(b"voicewire watermark payload" + key).digest()[:4], "big")
