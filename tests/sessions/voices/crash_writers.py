"""Fork writers one after another and kill each while it works.

Prints as JSON the names that the writers reported as stored, and how often a half-written file was left behind.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import BinaryIO

from sessions.owned_files import TEMP_SUFFIX
from sessions.voices.store import VoiceStore
from tests.sessions.voices.voices import voice

MAX_DELAY_S = 0.012
# On a busy machine the search may miss every half-written file; then the writer is killed wherever it is.
MAX_WAIT_S = 0.2


def write_until_killed(folder: Path, number: int, report: int) -> None:
    store = VoiceStore(folder)
    for serial in range(10_000):
        name = f"v{number}-{serial}"
        store.add(voice(name))
        os.write(report, f"{name}\n".encode())


def wait(folder: Path, number: int, pipe: BinaryIO) -> list[str]:
    """Every eighth writer may store a voice, every eighth is killed wherever it is, the others in mid-write."""
    if number % 8 == 0:
        return [pipe.readline().decode().strip()]
    end_s = time.monotonic() + MAX_WAIT_S
    while number % 8 > 1 and not halves(folder, f"v{number}-") and time.monotonic() < end_s:
        time.sleep(0.0002)
    return []


def halves(folder: Path, name: str = "") -> list[Path]:
    return list(folder.glob(f"*/{name}*{TEMP_SUFFIX}"))


def main(folder: Path, num_kills: int) -> None:
    dice = random.Random(7)
    reported: list[str] = []
    num_halves = 0
    for number in range(num_kills):
        reading, report = os.pipe()
        if not (writer := os.fork()):
            try:
                write_until_killed(folder, number, report)
            finally:
                os._exit(1)
        os.close(report)
        with os.fdopen(reading, "rb") as pipe:
            reported += wait(folder, number, pipe)
            time.sleep(dice.uniform(0, MAX_DELAY_S))
            os.kill(writer, signal.SIGKILL)
            os.waitpid(writer, 0)
            reported += pipe.read().decode().split()
        num_halves += bool(halves(folder, f"v{number}-"))
    print(json.dumps({"stored": reported, "num_halves": num_halves}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
