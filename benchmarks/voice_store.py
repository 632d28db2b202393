"""Measure the voice store: listing a thousand voices, finding one, adding one.

    python -m benchmarks.voice_store [--voices 1000] [--rounds 5]

*Cold* is a new process, *warm* one that has listed the folder before. The minimum of the rounds is reported; the last
line is JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from engine.api import ClonedVoice
from sessions.voices.store import VoiceStore
from sessions.voices.voice import StoredVoice, VoiceManifest

# Of the 1.7B checkpoints, and ten seconds in context.
EMBEDDING_SIZE, NUM_CODEBOOKS, NUM_FRAMES = 2_048, 16, 125


def voice(number: int) -> StoredVoice:
    random = np.random.default_rng(number)
    clone = ClonedVoice(
        embedding=random.standard_normal(EMBEDDING_SIZE).astype(np.float32).tobytes(),
        codes=random.integers(0, 2_048, (NUM_FRAMES, NUM_CODEBOOKS)).astype(np.int16).tobytes(),
        num_codebooks=NUM_CODEBOOKS,
        transcript="What is said in the recording. " * 4,
    )
    about = {"consent": "a statement", "description": "a voice", "created_s": 1, "source": "audio"}
    return StoredVoice(VoiceManifest(name=f"voice-{number}", transcript=clone.transcript, **about), clone)


def least_ms(num_rounds: int, prepare: Callable[[], VoiceStore], work: Callable[[VoiceStore], object]) -> float:
    times = []
    for _ in range(num_rounds):
        store = prepare()
        begun = time.perf_counter()
        work(store)
        times.append(time.perf_counter() - begun)
    return 1000 * min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--voices", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        told = measure(Path(folder), args.voices, args.rounds)
    for name, value_ms in told.items():
        print(f"{name:16} {value_ms:8.2f} ms")
    print(json.dumps({"voices": args.voices} | told))


def measure(folder: Path, num_voices: int, num_rounds: int) -> dict[str, float]:
    store = VoiceStore(folder)
    begun = time.perf_counter()
    for number in range(num_voices):
        store.add(voice(number))
    add_ms = 1000 * (time.perf_counter() - begun) / num_voices
    store.list("")
    name = f"voice-{num_voices // 2}"
    return {
        "list, cold": least_ms(num_rounds, lambda: VoiceStore(folder), lambda new: new.list("")),
        "list, warm": least_ms(num_rounds, lambda: store, lambda known: known.list("")),
        "find, cold": least_ms(num_rounds, lambda: VoiceStore(folder), lambda new: new.find("", name)),
        "find, warm": least_ms(num_rounds, lambda: store, lambda known: known.find("", name)),
        "add, mean": add_ms,
    }


if __name__ == "__main__":
    main()
