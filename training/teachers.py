"""The voices that the model learns from, at 24 kHz: an HTS voice, a man's voice made of it, and flite's voices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from sessions.audio.resampler import Resampler
from training import festival, flite, hts_engine
from training.flite import Speech, TeacherSettings
from training.hts_engine import HtsEngine, Speaker
from training.settings import SAMPLE_RATE

# The teacher of each voice: one of ``HTS_SPEAKERS``, else one of flite's.
TEACHERS = {"clara": "slt-hts", "edwin": "slt-hts-low"}
HTS_SPEAKERS = {"slt-hts": Speaker(), "slt-hts-low": Speaker(semitones=-7.0, alpha=0.51)}
TRIMMED = TeacherSettings()
# Bring the HTS voices to the loudness of flite's.
HTS_GAINS = {"slt-hts": 1.87, "slt-hts-low": 2.27}


@dataclass(frozen=True)
class Take:
    """What a synthesizer returned, at a rate of its own."""

    # float32 in [-1, 1].
    signal: npt.NDArray[np.float32]
    rate_hz: int
    names: list[str]
    end_s: list[float]


def synthesize(text: str, teacher: str, settings: TeacherSettings = TRIMMED) -> Speech:
    """Speak ``text`` at 24 kHz: trimmed, at one loudness for all teachers.

    Raises ValueError for text in which the teacher finds nothing to say.
    """
    take = _take(text, teacher)
    if all(name == "pau" for name in take.names):
        raise ValueError(f"text: nothing to speak in {len(text)} characters")
    resampler = Resampler(take.rate_hz, SAMPLE_RATE)
    signal = np.concatenate([resampler.push(take.signal), resampler.flush()])
    ends = [round(end_s * SAMPLE_RATE) for end_s in take.end_s]
    return flite.trim(flite.limit_peak(signal), take.names, ends, settings, SAMPLE_RATE)


def _take(text: str, teacher: str) -> Take:
    if teacher in HTS_SPEAKERS:
        labels, names = festival.festival().read(text)
        pcm, end_s = _engine(teacher).speak(labels)
        return Take(pcm * np.float32(HTS_GAINS[teacher] / 32_768), hts_engine.RATE_HZ, names, end_s)
    pcm, names, ends = flite.speak(text, teacher)
    gain = np.float32(flite.VOICE_GAINS[teacher] / 32_768)
    return Take(pcm * gain, flite.SAMPLE_RATE_HZ, names, [end / flite.SAMPLE_RATE_HZ for end in ends])


@cache
def _engine(teacher: str) -> HtsEngine:
    return HtsEngine(festival.VOICE_FILE, HTS_SPEAKERS[teacher])


def available() -> bool:
    """Report whether all teachers can speak here."""
    return flite.available() and festival.available() and hts_engine.available()
