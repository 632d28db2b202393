"""Messages that are almost right: valid ones, cut, spliced, bent and filled with odd values."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

TYPES = (
    "session.update",
    "session.close",
    "response.create",
    "text.append",
    "text.flush",
    "text.end",
    "response.cancel",
    "playback.report",
    "session.created",
    "nonsense",
)
FIELDS = ("response_id", "text", "played_ms", "settings", "end", "format", "voice", "pace", "lead_ms", "seed", "x")
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 2**31, 2**64, -(2**70), 0.5, 1e300, "", "r1", "r2", "a b", "\u0000", "é", "😀", "\ud83d", " ",
    "x" * 300, [], [1, [2]], {}, {"encoding": "opus"}, {"format": {"encoding": "pcm_s16le", "sample_rate": 24000}},
    "lead", "burst", "ada", "opus",
)  # fmt: skip
RIGHT: tuple[dict[str, Any], ...] = (
    {"type": "response.create", "response_id": "r1", "settings": {"pace": "burst"}},
    {"type": "response.create", "text": "Hello there.", "end": True},
    {"type": "text.append", "response_id": "r1", "text": "Hello, world. "},
    {"type": "text.flush", "response_id": "r1"},
    {"type": "text.end", "response_id": "r1"},
    {"type": "response.cancel", "response_id": "r1", "played_ms": 120},
    {"type": "playback.report", "response_id": "r1", "played_ms": 80.5},
    {"type": "session.update", "settings": {"voice": "ada", "format": {"encoding": "mulaw", "sample_rate": 8000}}},
)


def random_message(rng: random.Random) -> str | bytes:
    return rng.choice(MAKERS)(rng)


def _right(rng: random.Random) -> str:
    return json.dumps(rng.choice(RIGHT))


def _odd_fields(rng: random.Random) -> str:
    message = dict(rng.choice(RIGHT)) if rng.random() < 0.7 else {"type": rng.choice(TYPES)}
    for _ in range(rng.randint(0, 3)):
        message[rng.choice(FIELDS)] = rng.choice(VALUES)
    return json.dumps(message, ensure_ascii=rng.random() < 0.9)


def _cut(rng: random.Random) -> str:
    text = _odd_fields(rng)
    return text[: rng.randint(0, len(text))]


def _bent(rng: random.Random) -> bytes:
    data = bytearray(_right(rng).encode())
    for _ in range(rng.randint(1, 4)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def _spliced(rng: random.Random) -> str:
    first, second = _right(rng), _odd_fields(rng)
    return first[: rng.randint(0, len(first))] + second[rng.randint(0, len(second)) :]


def _noise(rng: random.Random) -> bytes:
    return rng.randbytes(rng.randint(0, 60))


def _almost_audio(rng: random.Random) -> bytes:
    packets = [rng.randbytes(rng.randint(0, 5)) for _ in range(rng.randint(0, 3))]
    header = bytes([1, rng.randint(0, 5), 0, len(packets)]) + rng.randbytes(12)
    data = header + b"".join(len(packet).to_bytes(2, "big") + packet for packet in packets)
    return data[: rng.randint(0, len(data))] if rng.random() < 0.3 else data


MAKERS: tuple[Callable[[random.Random], str | bytes], ...] = (
    _right, _odd_fields, _odd_fields, _cut, _bent, _spliced, _noise, _almost_audio,
)  # fmt: skip
