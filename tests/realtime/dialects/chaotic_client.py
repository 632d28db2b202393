"""Clients that send what is right, almost right and wrong."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest

# Of a test that sends random messages: few in the default run.
AT_LENGTH = pytest.mark.parametrize("num_messages", [1_000, pytest.param(50_000, marks=pytest.mark.slow)])

IDS = ("c1", "c2", "", "x" * 300, None, 7)
TEXTS = ("Hello there. ", " ", "", "é😀", "\ud83d", "\0", None, 5, [], "x" * 2_000)
FLAGS = (True, False, None, 1, "true", [])
FIELDS: dict[str, tuple[Any, ...]] = {
    "type": ("Speak", "Flush", "Clear", "Close", "Interrupt", "Configure", "KeepAlive", "Shout", None, 3),
    "text": TEXTS,
    "transcript": TEXTS,
    "inputs": ([{"text": "Hi."}], [{"text": None}], [], None, "x"),
    "voices": (["zoe"], [], None, [3]),
    "context_id": IDS,
    "contextId": IDS,
    "flush": FLAGS,
    "continue": FLAGS,
    "cancel": FLAGS,
    "close_context": FLAGS,
    "close_socket": (None, None, None, True),
    "keep_alive": FLAGS,
    "voice": ("zoe", {"mode": "id", "id": "zoe"}, {"embedding": [0.5]}, None, 3),
    "output_format": (
        {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24_000},
        {"container": "mp3"},
        {"encoding": "x"},
        None,
        [],
    ),
    "playback_offset": ({"type": "time_ms", "value": 100}, {"value": -5}, {"value": 1e300}, {}, None),
    "speed": (1.0, 1.2, -1, 1e300, None, "fast"),
    "xi_api_key": (None, None, None, "key"),
    "add_timestamps": FLAGS,
}


class ChaoticClient:
    """Sends what is right, almost right and wrong."""

    def __init__(self, rng: random.Random, right: Sequence[dict[str, Any] | bytes] = ()) -> None:
        self._rng = rng
        # Messages of this wire that its clients really send.
        self._right = right

    def message(self) -> str | bytes:
        if self._right and self._rng.random() < 0.6:
            return self._known()
        return self._rng.choice((self._json, self._json, self._json, self._json, self._bent, self._cut, self._noise))()

    def _known(self) -> str | bytes:
        right = self._rng.choice(self._right)
        if isinstance(right, bytes):
            data = bytearray(right)
            if data and self._rng.random() < 0.5:
                data[self._rng.randrange(len(data))] = self._rng.randrange(256)
            return bytes(data[: self._rng.randint(0, len(data))] if self._rng.random() < 0.2 else data)
        return json.dumps(self._almost(right))

    def _almost(self, right: dict[str, Any]) -> dict[str, Any]:
        """Here and there another value, at any depth."""
        fields = {name: self._almost(value) if isinstance(value, dict) else value for name, value in right.items()}
        while self._rng.random() < 0.3:
            name = self._rng.choice([*fields, *FIELDS])
            odd = (None, 3, -1e300, 10**400, True, "x", [], [3], {}, {"text": "x"})
            fields[name] = self._rng.choice((*FIELDS.get(name, ()), *odd))
        return fields

    def _json(self) -> str:
        names = self._rng.sample(list(FIELDS), self._rng.randint(0, 7))
        fields = {name: self._rng.choice(FIELDS[name]) for name in names}
        if self._rng.random() < 0.5:
            fields |= {"type": self._rng.choice(FIELDS["type"][:6]), "context_id": self._rng.choice(IDS[:2])}
        return json.dumps(fields)

    def _cut(self) -> str:
        text = self._json()
        return text[: self._rng.randint(0, len(text))]

    def _bent(self) -> bytes:
        data = bytearray(self._json().encode() or b"{}")
        data[self._rng.randrange(len(data))] = self._rng.randrange(256)
        return bytes(data)

    def _noise(self) -> bytes:
        return self._rng.randbytes(self._rng.randint(0, 40))
