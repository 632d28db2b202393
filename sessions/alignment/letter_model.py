"""Predicts the sound and duration of each character: one unit of the path through the speech."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from sessions.alignment.weights import LetterModelWeights


Floats = npt.NDArray[np.float32]

CHARACTERS = "abcdefghijklmnopqrstuvwxyz'- ,.?!;:"
NUMBERS = {character: number for number, character in enumerate(CHARACTERS)}
EDGE = NUMBERS[" "]
# Characters before and after a letter, within its word, on which its sound depends.
CONTEXT_CHARS = 4
# The longest duration that is distinguished; a longer one counts as this.
MAX_STEPS = 14
# Words come again and again; what the network says of the last ones is kept.
MAX_CACHED_WORDS = 1_024
FLOOR_LOG = -9.0
# The sound of the pause.
SILENCE = 0
# Mean durations of characters that the network does not know.
OTHER_STEPS = {"wide": 10.0, "digit": 18.0, "letter": 5.0}
OTHER_SPREAD = 0.5


@dataclass(frozen=True, slots=True)
class AlignmentUnits:
    """The units to align, one row per character."""

    # Probabilities [n, num_sounds].
    sounds: Floats
    # Log-probabilities of lasting 0 ... MAX_STEPS steps, [n, MAX_STEPS + 1].
    durations: Floats


def normalize_letter(character: str) -> str:
    """The letter of the network's alphabet that stands for it; itself where there is none."""
    lower = "'" if character == "’" else character.lower()
    if len(lower) == 1 and lower in NUMBERS:
        return lower
    base = unicodedata.normalize("NFD", lower)[:1]
    return base if base in NUMBERS else " " if character.isspace() else character


def is_wide(character: str) -> bool:
    return unicodedata.east_asian_width(character) in "WF"


def is_coarticulated(character: str) -> bool:
    """Return whether its sound depends on its neighbours: it is a letter, or inside a word."""
    return (
        (character.isalpha() and not is_wide(character)) or character in "'-’" or bool(unicodedata.combining(character))
    )


def context_window(run: str) -> npt.NDArray[np.int64]:
    """The characters around each of a run, by number: [n, 2 * PLACES_BESIDE + 1]."""
    numbers = [NUMBERS.get(normalize_letter(character), EDGE) for character in run]
    padded = np.pad(np.array(numbers, np.int64), CONTEXT_CHARS, constant_values=EDGE)
    return np.lib.stride_tricks.sliding_window_view(padded, 2 * CONTEXT_CHARS + 1)


@lru_cache(maxsize=MAX_CACHED_WORDS)
def predict_units(weights: LetterModelWeights, run: str) -> AlignmentUnits:
    sounds, durations = weights.predict(context_window(run))
    sounds, durations = np.exp(sounds), np.maximum(durations, FLOOR_LOG)
    for place, character in enumerate(run):
        if normalize_letter(character) not in NUMBERS:
            sounds[place], durations[place] = _unknown(character, sounds.shape[1])
    return AlignmentUnits(sounds, durations)


def _unknown(character: str, num_sounds: int) -> tuple[Floats, Floats]:
    silent = not character.isalnum()
    sounds = np.full(num_sounds, 1.0 / (num_sounds - 1), np.float32)
    sounds[SILENCE] = 0.0
    if silent:
        sounds = np.eye(num_sounds, dtype=np.float32)[SILENCE]
    return sounds, _spread_around(0.3 if silent else _mean_steps(character))


def _mean_steps(character: str) -> float:
    if character.isnumeric():
        return OTHER_STEPS["digit"]
    return OTHER_STEPS["wide"] if is_wide(character) else OTHER_STEPS["letter"]


def _spread_around(mean_steps: float) -> Floats:
    steps = np.arange(MAX_STEPS + 1) + 0.3
    log = -0.5 * (np.log(steps / (mean_steps + 0.3)) / OTHER_SPREAD) ** 2
    log = log - np.log(np.exp(log).sum())
    floored: Floats = np.maximum(log, FLOOR_LOG).astype(np.float32)
    return floored
