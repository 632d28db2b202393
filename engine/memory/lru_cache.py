"""Caches of what was used last: any values by key, and cloned voices by what they hold. Imports no torch."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Hashable
from functools import lru_cache
from typing import Generic, TypeVar

from engine.api import ClonedVoice

Value = TypeVar("Value")
# Of up to half a megabyte each.
MAX_KNOWN_VOICES = 32


class LruCache(Generic[Value]):
    """At most ``max_entries`` values; the least recently used is evicted first."""

    def __init__(self, max_entries: int) -> None:
        self._values: OrderedDict[Hashable, Value] = OrderedDict()
        self.max_entries = max_entries

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable) -> Value | None:
        if key in self._values:
            self._values.move_to_end(key)
        return self._values.get(key)

    def put(self, key: Hashable, value: Value) -> None:
        self._values[key] = value
        while len(self._values) > self.max_entries:
            self._values.popitem(last=False)


class VoiceCache(ABC, Generic[Value]):
    """The most recently used cloned voices, prepared for the stages of a family."""

    def __init__(self, max_voices: int) -> None:
        self._voices: LruCache[Value] = LruCache(max_voices)
        # Comparing with voices before, whole as they came, takes a quarter of the time of the digest.
        self._key_of = lru_cache(maxsize=min(max_voices, MAX_KNOWN_VOICES))(voice_key)

    def __len__(self) -> int:
        return len(self._voices)

    def get(self, voice: ClonedVoice) -> Value:
        key = self._key_of(voice)
        prepared = self._voices.get(key)
        if prepared is None:
            prepared = self.prepare(key, voice)
            self._voices.put(key, prepared)
        return prepared

    @abstractmethod
    def prepare(self, key: bytes, voice: ClonedVoice) -> Value: ...


def voice_key(voice: ClonedVoice) -> bytes:
    """Names a voice by what it holds."""
    digest = hashlib.blake2b(digest_size=16)
    transcript = voice.transcript.encode("utf-8", "surrogatepass") if voice.codes else b""
    for part in (voice.embedding, voice.codes, voice.mel, transcript):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()
