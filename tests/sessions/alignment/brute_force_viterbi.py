"""The likeliest path by trying every way there is: slow, and plainly right."""

from __future__ import annotations

from functools import cache

import numpy as np

from sessions.alignment.letter_model import MAX_STEPS, AlignmentUnits
from sessions.alignment.viterbi import EMISSION_FLOOR, EMISSION_WEIGHT, SELF_LOOP_LOG_PROB


def best_score(units: AlignmentUnits, scores: np.ndarray) -> float:
    """Of all ways that begin before the first step and end after the last, with every unit in order."""
    sound = EMISSION_WEIGHT * np.log(units.sounds @ np.exp(scores).T + EMISSION_FLOOR)

    @cache
    def best(unit: int, step: int) -> float:
        """From the start of a unit at a step to the end."""
        if unit == len(units.sounds):
            return 0.0 if step == len(scores) else -np.inf
        return max(
            lasting_score(units, sound, unit, step, end) + best(unit + 1, end) for end in range(step, len(scores) + 1)
        )

    return best(0, 0)


def lasting_score(units: AlignmentUnits, sound: np.ndarray, unit: int, start: int, end: int) -> float:
    steps = end - start
    beyond = max(steps - MAX_STEPS, 0)
    heard = sound[unit, start:end].sum()
    if beyond:
        # what goes on beyond the longest duration pays for each step
        return float(units.durations[unit, MAX_STEPS] + heard + beyond * SELF_LOOP_LOG_PROB)
    return float(units.durations[unit, steps] + heard)


def score_of(units: AlignmentUnits, scores: np.ndarray, ends: list[int]) -> float:
    """Of one way: the step at which each unit ends."""
    sound = EMISSION_WEIGHT * np.log(units.sounds @ np.exp(scores).T + EMISSION_FLOOR)
    starts = [0, *ends[:-1]]
    return sum(
        lasting_score(units, sound, unit, start, end)
        for unit, (start, end) in enumerate(zip(starts, ends, strict=True))
    )
