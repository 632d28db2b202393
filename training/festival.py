"""A full-band teacher: Debian's ``festvox-us-slt-hts`` at 32 kHz, spoken by one festival process per worker.

It has the speaker of flite's slt, speaks about 40 times faster than real time on one core, and prints phonemes with
their ends as flite does.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import wave
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from training.flite import PHONEME_IDS

VOICE = "cmu_us_slt_arctic_hts"
RATE_HZ = 32_000
# Phonemes of festival's set that flite's lacks.
PHONEME_NAMES = {
    "axr": "er",
    "dx": "t",
    "el": "l",
    "em": "m",
    "en": "n",
    "hv": "hh",
    "nx": "n",
    "brth": "pau",
    "h#": "pau",
}
DONE = "spoken"


class Festival:
    """One process that speaks sentence after sentence."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        self._process = subprocess.Popen(
            ["festival", "--pipe"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._send(f"(voice_{VOICE})")

    def close(self) -> None:
        self._process.communicate("(quit)\n")
        self._folder.cleanup()

    def speak(self, text: str) -> tuple[npt.NDArray[np.int16], list[str], list[float]]:
        """PCM at 32 kHz, the phonemes, and the second at which each ends.

        Raises FileNotFoundError where festival reported an error instead of speaking.
        """
        pcm, segments = Path(self._folder.name, "speech.wav"), Path(self._folder.name, "speech.segs")
        pcm.unlink(missing_ok=True)
        quoted = text.replace("\\", " ").replace('"', " ")
        self._send(
            f'(begin (set! spoken (Utterance Text "{quoted}")) (utt.synth spoken)'
            f' (utt.save.wave spoken "{pcm}" (quote riff)) (utt.save.segs spoken "{segments}"))'
        )
        self._wait()
        with wave.open(str(pcm)) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), np.int16)
        rows = [line.split() for line in segments.read_text().splitlines()[1:] if line.strip()]
        return samples, [flite_name(row[2]) for row in rows], [float(row[0]) for row in rows]

    def _send(self, expression: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(expression + "\n")
        self._process.stdin.flush()

    def _wait(self) -> None:
        # An expression of its own: it is reached even if the one before ended in an error.
        self._send(f'(begin (format t "{DONE}\\n") (fflush nil))')
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if DONE in line:
                return
        raise RuntimeError(f"festival ended with {self._process.wait()}")


def flite_name(phoneme: str) -> str:
    """Raises KeyError for a phoneme that flite has no name for."""
    name = PHONEME_NAMES.get(phoneme, phoneme)
    if name not in PHONEME_IDS:
        raise KeyError(f"phoneme: {phoneme!r} is none of flite's")
    return name


def available() -> bool:
    """Report whether festival and its voice are installed."""
    return shutil.which("festival") is not None and Path("/usr/share/festival/voices/us", VOICE).is_dir()


@cache
def festival() -> Festival:
    """The process of this worker."""
    return Festival()
