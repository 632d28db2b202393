"""What all clients say, and what each tells of a turn it played. ``VOICEWIRE_PLAYED`` names a folder for the sound:
``turn-1.wav``, ``turn-2.wav`` ... in the order they are told.
"""

from __future__ import annotations

import itertools
import os
import wave
from array import array
from collections.abc import Iterable
from pathlib import Path

KEY = "a-key-of-enough-characters"
TURNS = ("Hello there, how are you today? It is nice to hear from you.", "This is the second turn. Goodbye for now.")
LONG = " ".join(f"This is sentence number {number} of a very long story." for number in range(30))
TURN_TIMEOUT_S = float(os.environ.get("VOICEWIRE_TURN_TIMEOUT_S", "30"))

_numbers = itertools.count(1)


def played(text: str, pcm: bytes, rate: int, words: Iterable[object] = ()) -> dict[str, object]:
    """``pcm``: s16le, mono. ``words``: each begins with its text and its start."""
    samples = array("h", pcm[: len(pcm) // 2 * 2])
    _keep(samples, rate)
    return {
        "text": text,
        "duration_s": len(samples) / rate if rate else 0.0,
        "peak": max(map(abs, samples), default=0),
        "words": list(words),
    }


def _keep(samples: array[int], rate: int) -> None:
    folder = os.environ.get("VOICEWIRE_PLAYED")
    if folder and rate:
        with wave.open(str(Path(folder) / f"turn-{next(_numbers)}.wav"), "wb") as file:
            file.setparams((1, 2, rate, 0, "NONE", ""))
            file.writeframes(samples.tobytes())
