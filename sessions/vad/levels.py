"""What a line carries, as sound, and how loud that is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sessions.audio.g711 import alaw_to_pcm, mulaw_to_pcm
from sessions.audio.pcm import Pcm, s16le_to_pcm

SILENCE_DB = -120.0


def f32le_to_pcm(data: bytes) -> Pcm:
    return np.frombuffer(data, "<f4").astype(np.float32, copy=False)


DECODERS: dict[str, Callable[[bytes], Pcm]] = {
    "mulaw": mulaw_to_pcm,
    "alaw": alaw_to_pcm,
    "pcm_s16le": s16le_to_pcm,
    "pcm_f32le": f32le_to_pcm,
}
# A sample of it.
SILENCE = {"mulaw": b"\xff", "alaw": b"\xd5", "pcm_s16le": bytes(2), "pcm_f32le": bytes(4)}


def level_db(pcm: Pcm) -> float:
    """Of full scale; ``SILENCE_DB`` for nothing at all."""
    power = float(np.mean(np.square(pcm, dtype=np.float64))) if pcm.size else 0.0
    return max(10.0 * float(np.log10(power)), SILENCE_DB) if power > 0 else SILENCE_DB


def encoded_level_db(encoding: str, data: bytes) -> float:
    return level_db(DECODERS[encoding](data))
