"""What all clients say, and what each tells of a turn it played. ``VOICEWIRE_PLAYED`` names a folder for the sound:
each turn names its file, and ``cut.wav`` is what came of a turn that was interrupted.
"""

from __future__ import annotations

import io
import itertools
import logging
import os
import wave
from array import array
from collections.abc import Iterable
from pathlib import Path

KEY = "a-key-of-enough-characters"
TURNS = ("Hello there, how are you today? It is nice to hear from you.", "This is the second turn. Goodbye for now.")
LONG = " ".join(f"This is sentence number {number} of a very long story." for number in range(30))
STORY = "Once there was a long story. It had a second sentence, and then a third one. After that it came to its end."
# By the script of the tests' server.
STORY_S = 0.06 * len(STORY)
TURN_TIMEOUT_S = float(os.environ.get("VOICEWIRE_TURN_TIMEOUT_S", "30"))
# -44 dBFS
SILENT = 207
MAX_PAUSE_S = 1.3
# A turn is interrupted once so much of it has come, and something.
CUT_AFTER_S = float(os.environ.get("VOICEWIRE_CUT_AFTER_S", "0"))

_numbers = itertools.count(1)


def played(text: str, pcm: bytes, rate: int, words: Iterable[object] = ()) -> dict[str, object]:
    """``pcm``: s16le, mono. ``words``: each begins with its text and its start."""
    samples, name = samples_of(pcm), f"turn-{next(_numbers)}.wav"
    _keep(name, samples, rate)
    return {
        "text": text,
        "duration_s": len(samples) / rate if rate else 0.0,
        "peak": max(map(abs, samples), default=0),
        "words": list(words),
        "sound": name,
    }


def with_rime_forms(text: str, pause: str) -> str:
    """The first turn with a pause, and with a word in Rime's phonemes."""
    return text.replace("? ", f"? {pause} ").replace("nice", "{n1Ys}")


def check_pause(pcm: bytes, rate: int) -> None:
    """One pause of a second."""
    runs = [len(list(run)) for is_quiet, run in itertools.groupby(samples_of(pcm), _is_silent) if is_quiet]
    assert 0.95 < max(runs) / rate < MAX_PAUSE_S, max(runs) / rate


def _is_silent(sample: int) -> bool:
    return abs(sample) < SILENT


def decoded(data: bytes) -> tuple[bytes, int]:
    """PCM and rate of a file, by the package ``av``."""
    import av

    with av.open(io.BytesIO(data)) as container:
        resampler = av.AudioResampler("s16", "mono")
        pcm, rate = b"", 0
        for frame in container.decode(audio=0):
            rate = frame.sample_rate
            for part in resampler.resample(frame):
                pcm += part.to_ndarray().tobytes()
        return pcm, rate


class Warnings(logging.Handler):
    """Keep what a package logs as a warning or worse."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(f"{record.levelname} {record.name}: {record.getMessage()}")


def is_enough(pcm: bytes, rate: int) -> bool:
    """To interrupt the turn."""
    return bool(pcm) and len(pcm) >= 2 * rate * CUT_AFTER_S


def keep_cut(pcm: bytes, rate: int) -> None:
    """What came of the turn that was interrupted: of ``LONG``."""
    _keep("cut.wav", samples_of(pcm), rate)


def samples_of(pcm: bytes) -> array[int]:
    return array("h", pcm[: len(pcm) // 2 * 2])


def _keep(name: str, samples: array[int], rate: int) -> None:
    folder = os.environ.get("VOICEWIRE_PLAYED")
    if folder and rate:
        with wave.open(str(Path(folder) / name), "wb") as file:
            file.setparams((1, 2, rate, 0, "NONE", ""))
            file.writeframes(samples.tobytes())
