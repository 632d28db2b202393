"""Text to full-context labels of an HTS voice: one festival process per worker, for Debian's ``festvox-us-slt-hts``.

``hts_engine`` makes the speech; festival's own synthesis is turned off.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from training.flite import PHONEME_IDS

VOICE = "cmu_us_slt_arctic_hts"
VOICE_FILE = Path("/usr/share/festival/voices/us", VOICE, "hts", f"{VOICE}.htsvoice")
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
    """One process that reads sentence after sentence."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        self._process = subprocess.Popen(
            ["festival", "--pipe"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._send(f"(voice_{VOICE}) (define (HTS_Synthesize spoken) spoken)")

    def close(self) -> None:
        self._process.communicate("(quit)\n")
        self._folder.cleanup()

    def read(self, text: str) -> tuple[list[str], list[str]]:
        """One full-context label a phoneme, and the phonemes' names as flite has them.

        Raises FileNotFoundError where festival reported an error instead of labels.
        """
        path = Path(self._folder.name, "labels")
        path.unlink(missing_ok=True)
        quoted = text.replace("\\", " ").replace('"', " ")
        self._send(
            f'(begin (set! spoken (Utterance Text "{quoted}")) (utt.synth spoken) (set! file (fopen "{path}" "w"))'
            r' (mapcar (lambda (label) (format file "%s\n" label)) (hts_dump_feats_string_list spoken hts_feats_list))'
            " (fclose file))"
        )
        self._wait()
        labels = [" ".join(line.split()) for line in path.read_text().splitlines() if line.strip()]
        return labels, [flite_name(_phoneme(label)) for label in labels]

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


def _phoneme(label: str) -> str:
    """The middle one of ``start end a^b-PHONEME+d=e@...``."""
    return label.split("-", 1)[1].split("+", 1)[0]


def flite_name(phoneme: str) -> str:
    """Raises KeyError for a phoneme that flite has no name for."""
    name = PHONEME_NAMES.get(phoneme, phoneme)
    if name not in PHONEME_IDS:
        raise KeyError(f"phoneme: {phoneme!r} is none of flite's")
    return name


def available() -> bool:
    """Report whether festival and its voice are installed."""
    return shutil.which("festival") is not None and VOICE_FILE.exists()


@cache
def festival() -> Festival:
    """The process of this worker."""
    return Festival()
