"""How a part of a text is spoken, and what SSML's values mean."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from sessions.audio.time_stretch import MAX_SPEED, MIN_SPEED

# Longest silence of one break, and of all breaks of a response.
MAX_BREAK_MS = 10_000
MAX_TOTAL_BREAK_MS = 600_000
MIN_VOLUME_DB, MAX_VOLUME_DB = -60.0, 12.0

BREAK_STRENGTHS_MS = {"none": 0, "x-weak": 100, "weak": 250, "medium": 500, "strong": 1_000, "x-strong": 1_500}
DEFAULT_BREAK = "medium"
RATES = {"x-slow": 0.5, "slow": 0.75, "medium": 1.0, "default": 1.0, "fast": 1.25, "x-fast": 1.75}
VOLUMES_DB = {"x-soft": -12.0, "soft": -6.0, "medium": 0.0, "default": 0.0, "loud": 6.0, "x-loud": 12.0}

_NUMBER = r"\d{1,6}(?:\.\d{0,6})?|\.\d{1,6}"
_DURATION = re.compile(rf"\+?(?P<number>{_NUMBER})(?P<unit>ms|s)")
_PERCENT = re.compile(rf"(?P<sign>[+-]?)(?P<number>{_NUMBER})(?P<percent>%?)")
_DECIBEL = re.compile(rf"(?P<number>[+-]?(?:{_NUMBER}))dB", re.IGNORECASE)
_FULL_VOLUME = 100.0


@dataclass(frozen=True, slots=True)
class SpeechStyle:
    """Differences from the settings of the response."""

    voice: str | None = None
    language: str | None = None
    # Multiplies the playback rate of the response.
    speed: float = 1.0
    # Factor of the amplitude.
    gain: float = 1.0
    # An emotion or a manner of speaking, for models that take instructions.
    emotion: str = ""
    # Named in word times: a label of a line, or the name of a voice. Empty for the voice of the response.
    speaker: str = ""


PLAIN_STYLE = SpeechStyle()


def parse_duration_ms(value: str) -> float | None:
    """Return the milliseconds of ``1.5s`` or ``300ms``; ``None`` if that is no duration."""
    match = _DURATION.fullmatch(value.strip())
    return None if match is None else float(match["number"]) * (1000 if match["unit"] == "s" else 1)


def parse_rate(value: str) -> float | None:
    """Return the factor of a name, a number (``1.2``), a percentage (``120%``) or a change (``+20%``)."""
    value = value.strip().lower()
    if value in RATES:
        return RATES[value]
    match = _PERCENT.fullmatch(value)
    if match is None or (match["sign"] and not match["percent"]):
        return None
    number = float(match["number"]) / (_FULL_VOLUME if match["percent"] else 1)
    return {"+": 1 + number, "-": 1 - number, "": number}[match["sign"]]


def nearest_speed(speed: float) -> float:
    return min(max(speed, MIN_SPEED), MAX_SPEED)


def parse_volume_db(value: str) -> float | None:
    """Return the decibels of a name, of ``+6dB``, of a change (``-20%``) or of 0 to 100, where 100 is no change.
    Silence is ``-inf``."""
    value = value.strip().lower()
    if value == "silent":
        return -math.inf
    if value in VOLUMES_DB:
        return VOLUMES_DB[value]
    if match := _DECIBEL.fullmatch(value):
        return float(match["number"])
    match = _PERCENT.fullmatch(value)
    if match is None or (match["sign"] and not match["percent"]):
        return None
    share = float(match["number"]) / _FULL_VOLUME
    return _decibels({"+": 1 + share, "-": 1 - share, "": share}[match["sign"]])


def nearest_volume_db(decibels: float) -> float:
    """Return the nearest possible volume; silence is possible."""
    return decibels if decibels == -math.inf else min(max(decibels, MIN_VOLUME_DB), MAX_VOLUME_DB)


def nearest_gain(gain: float) -> float:
    """Return the nearest possible factor; silence is possible."""
    return min(max(gain, gain_of(MIN_VOLUME_DB)), gain_of(MAX_VOLUME_DB)) if gain > 0 else 0.0


def gain_of(decibels: float) -> float:
    return float(10 ** (decibels / 20))


def _decibels(factor: float) -> float:
    return 20 * math.log10(factor) if factor > 0 else -math.inf
