"""Debian's ``libhtsengine1``, called through ctypes: one HTS voice with a pitch and a vocal tract of choice.

The same voice file speaks for both teachers: a larger all-pass constant moves all formants down, as a longer vocal
tract does.
"""

from __future__ import annotations

import ctypes
import tempfile
import wave
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

SONAME = "libHTSEngine.so.1"
RATE_HZ = 32_000
# More than the library's structure needs, whose size it does not export.
ENGINE_BYTES = 1 << 16

_SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "initialize": (None, []),
    "load": (ctypes.c_bool, [ctypes.POINTER(ctypes.c_char_p), ctypes.c_size_t]),
    "set_alpha": (None, [ctypes.c_double]),
    "add_half_tone": (None, [ctypes.c_double]),
    "set_speed": (None, [ctypes.c_double]),
    "get_fperiod": (ctypes.c_size_t, []),
    "synthesize_from_strings": (ctypes.c_bool, [ctypes.POINTER(ctypes.c_char_p), ctypes.c_size_t]),
    "get_total_state": (ctypes.c_size_t, []),
    "get_state_duration": (ctypes.c_size_t, [ctypes.c_size_t]),
    "save_riff": (None, [ctypes.c_void_p]),
    "refresh": (None, []),
}


@dataclass(frozen=True)
class Speaker:
    """How a voice is changed; the defaults leave it as it is."""

    # Added to the pitch.
    semitones: float = 0.0
    # All-pass constant of the cepstra; None: the voice's own.
    alpha: float | None = None
    speed: float = 1.0


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(SONAME)
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, f"HTS_Engine_{name}")
        function.restype, function.argtypes = result, [ctypes.c_void_p, *arguments]
    return library


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.fopen.restype, libc.fopen.argtypes = ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_char_p]
    libc.fclose.argtypes = [ctypes.c_void_p]
    return libc


class HtsEngine:
    """One voice of one speaker.

    Raises ValueError where the library cannot read ``voice``.
    """

    def __init__(self, voice: Path, speaker: Speaker) -> None:
        self._memory = ctypes.create_string_buffer(ENGINE_BYTES)
        self._call("initialize")
        if not self._call("load", _strings([str(voice)]), 1):
            raise ValueError(f"voice: {voice} is no HTS voice")
        if speaker.alpha is not None:
            self._call("set_alpha", speaker.alpha)
        self._call("add_half_tone", speaker.semitones)
        self._call("set_speed", speaker.speed)

    def speak(self, labels: list[str]) -> tuple[npt.NDArray[np.int16], list[float]]:
        """Speak one full-context label a phoneme: PCM at 32 kHz, and the second at which each phoneme ends.

        Raises ValueError where the library cannot read ``labels``.
        """
        if not self._call("synthesize_from_strings", _strings(labels), len(labels)):
            raise ValueError(f"labels: {len(labels)} of them cannot be spoken")
        states = [self._call("get_state_duration", index) for index in range(self._call("get_total_state"))]
        frames = np.reshape(states, (len(labels), -1)).sum(1).cumsum()
        pcm = self._read_speech()
        self._call("refresh")
        return pcm, (frames * self._call("get_fperiod") / RATE_HZ).tolist()

    def _read_speech(self) -> npt.NDArray[np.int16]:
        with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
            path = Path(folder, "speech.wav")
            file = _libc().fopen(str(path).encode(), b"wb")
            self._call("save_riff", file)
            _libc().fclose(file)
            with wave.open(str(path)) as speech:
                return np.frombuffer(speech.readframes(speech.getnframes()), np.int16)

    def _call(self, name: str, *arguments: object) -> int:
        found: int = getattr(_library(), f"HTS_Engine_{name}")(ctypes.addressof(self._memory), *arguments)
        return found


def _strings(values: list[str]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * len(values))(*(value.encode() for value in values))


def available() -> bool:
    """Report whether the library can be loaded here."""
    try:
        _library()
    except OSError:
        return False
    return True
