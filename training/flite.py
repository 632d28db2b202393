"""The teacher: the free synthesiser flite 2.2 (Debian package libflite1), called through ctypes.

One voice speaks about 80 to 100 times faster than real time on one core. Every call gives the waveform and the
phonemes that were spoken, with the time at which each ends, so aligned labels cost nothing.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

SAMPLE_RATE_HZ = 16000
# As flite names them; the first is silence.
PHONEMES = (
    "pau aa ae ah ao aw ax ay b ch d dh eh er ey f g hh ih iy jh k l m n ng ow oy p r s sh t th uh uw v w y z zh"
).split()
PHONEME_IDS = {name: index for index, name in enumerate(PHONEMES)}
# Root mean square of speech between the outer silences, -18 dBFS, to which the gains below bring every voice.
SPEECH_LEVEL = 0.126
VOICE_GAINS = {"slt": 0.683, "rms": 1.353, "awb": 1.232, "kal16": 3.267}
MAX_PEAK = 0.95
FADE_S = 0.01

Pcm16 = npt.NDArray[np.int16]


@dataclass(frozen=True)
class TeacherSettings:
    # Silence kept before the first phoneme.
    lead_s: float = 0.06
    # Silence kept after the last phoneme.
    tail_s: float = 0.10


@dataclass(frozen=True)
class Speech:
    # At the teacher's rate.
    pcm: Pcm16
    # Indices into PHONEMES; the first and the last are the outer silences.
    phonemes: npt.NDArray[np.uint8]
    # Where each phoneme ends in ``pcm``; the last equals its length.
    end_samples: npt.NDArray[np.int32]


class _Wave(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_char_p),
        ("sample_rate", ctypes.c_int),
        ("num_samples", ctypes.c_int),
        ("num_channels", ctypes.c_int),
        ("samples", ctypes.POINTER(ctypes.c_short)),
    ]


_SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "flite_synth_text": (ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_void_p]),
    "utt_wave": (ctypes.POINTER(_Wave), [ctypes.c_void_p]),
    "utt_relation": (ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]),
    "relation_head": (ctypes.c_void_p, [ctypes.c_void_p]),
    "item_next": (ctypes.c_void_p, [ctypes.c_void_p]),
    "item_as": (ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]),
    "item_daughter": (ctypes.c_void_p, [ctypes.c_void_p]),
    "item_feat_string": (ctypes.c_char_p, [ctypes.c_void_p, ctypes.c_char_p]),
    "item_feat_float": (ctypes.c_float, [ctypes.c_void_p, ctypes.c_char_p]),
    "delete_utterance": (None, [ctypes.c_void_p]),
}


def _load(name: str) -> ctypes.CDLL:
    return ctypes.CDLL(f"lib{name}.so.1", mode=ctypes.RTLD_GLOBAL)


@cache
def _library() -> ctypes.CDLL:
    library = _load("flite")
    for name in ("flite_usenglish", "flite_cmulex"):
        _load(name)
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    library.flite_init()
    return library


@cache
def _voice(name: str) -> int:
    _library()
    register = getattr(_load(f"flite_cmu_us_{name}"), f"register_cmu_us_{name}")
    register.restype, register.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    return int(register(None))


def available() -> bool:
    """Whether flite's libraries can be loaded here."""
    try:
        _library()
    except OSError:
        return False
    return True


def synthesize(text: str, voice: str, settings: TeacherSettings = TeacherSettings()) -> Speech:
    """Speak ``text`` with ``voice`` (slt female; rms, awb, kal16 male): trimmed, at one loudness for all voices.

    Raises ValueError for text in which flite finds nothing to say.
    """
    pcm, names, ends = speak(text, voice)
    if all(name == "pau" for name in names):
        raise ValueError(f"text: nothing to speak in {len(text)} characters")
    signal = limit_peak(pcm.astype(np.float32) * (VOICE_GAINS[voice] / 32768))
    return trim(signal, names, ends, settings, SAMPLE_RATE_HZ)


def speak(text: str, voice: str) -> tuple[Pcm16, list[str], list[int]]:
    """PCM at 16 kHz as flite makes it, the phonemes, and the sample at which each ends."""
    flite = _library()
    ctypes.CDLL(None).srand(zlib.crc32(text.encode()))  # the C library's noise excites flite's voices
    utterance = flite.flite_synth_text(text.encode("ascii"), _voice(voice))
    try:
        wave = flite.utt_wave(utterance).contents
        pcm = np.ctypeslib.as_array(wave.samples, (wave.num_samples,)).copy()
        segments = list(_siblings(_head(utterance, b"Segment")))
        names = [_name(item) for item in segments]
        ends = [round(flite.item_feat_float(item, b"end") * SAMPLE_RATE_HZ) for item in segments]
    finally:
        flite.delete_utterance(utterance)
    return pcm, names, ends


def _head(utterance: int, relation: bytes) -> int | None:
    flite = _library()
    head: int | None = flite.relation_head(flite.utt_relation(utterance, relation))
    return head


def _siblings(item: int | None) -> Iterator[int]:
    while item:
        yield item
        item = _library().item_next(item)


def _name(item: int) -> str:
    name: bytes = _library().item_feat_string(item, b"name")
    return name.decode()


@dataclass(frozen=True)
class Word:
    name: str
    phonemes: tuple[int, ...]


def spoken_words(text: str) -> list[Word]:
    """The words of ``text`` as flite's lexicon and rules say them."""
    flite = _library()
    utterance = flite.flite_synth_text(text.encode("ascii"), _voice("kal16"))  # the fastest
    words = []
    try:
        for word in _siblings(_head(utterance, b"Word")):
            syllables = _siblings(flite.item_daughter(flite.item_as(word, b"SylStructure")))
            phonemes = [_name(item) for syllable in syllables for item in _siblings(flite.item_daughter(syllable))]
            words.append(Word(_name(word), tuple(PHONEME_IDS[phoneme] for phoneme in phonemes)))
    finally:
        flite.delete_utterance(utterance)
    return words


def limit_peak(signal: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Scale ``signal`` down where its peak is above MAX_PEAK."""
    peak = float(np.abs(signal).max(initial=0))
    return signal * (MAX_PEAK / peak) if peak > MAX_PEAK else signal


def trim(
    signal: npt.NDArray[np.float32], names: list[str], ends: list[int], settings: TeacherSettings, rate_hz: int
) -> Speech:
    """Cut or pad the outer silences to the settings; zeros are added where flite gave less."""
    spoken = [index for index, name in enumerate(names) if name != "pau"]
    first, last = spoken[0], spoken[-1]
    speech_start = ends[first - 1] if first else 0
    speech_end = min(ends[last], len(signal))
    start = speech_start - round(settings.lead_s * rate_hz)
    stop = speech_end + round(settings.tail_s * rate_hz)
    kept = _fade_edges(signal[max(start, 0) : stop], round(FADE_S * rate_hz))
    padded = np.pad(kept, (max(-start, 0), stop - max(start, 0) - len(kept)))
    bounds = [speech_start, *ends[first : last + 1], stop]
    phonemes = ["pau", *names[first : last + 1], "pau"]
    return Speech(
        np.round(padded * 32767).astype(np.int16),
        np.array([PHONEME_IDS[name] for name in phonemes], np.uint8),
        np.clip(np.array(bounds) - start, 0, len(padded)).astype(np.int32),
    )


def _fade_edges(signal: npt.NDArray[np.float32], num_samples: int) -> npt.NDArray[np.float32]:
    faded = signal.copy()
    ramp = np.linspace(0, 1, num_samples, endpoint=False, dtype=np.float32)
    faded[:num_samples] *= ramp
    faded[-num_samples:] *= ramp[::-1]
    return faded
