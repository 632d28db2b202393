"""The path found step by step is the best there is, and stays so when the past is discarded."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessions.alignment.letter_model import MAX_STEPS, AlignmentUnits
from sessions.alignment.viterbi import BEAM_UNITS, EMISSION_FLOOR, EMISSION_WEIGHT, SELF_LOOP_LOG_PROB, ViterbiPath

NUM_SOUNDS = 5


def drawn(seed: int, num_units: int, num_steps: int) -> tuple[AlignmentUnits, np.ndarray]:
    random = np.random.default_rng(seed)
    sounds = random.dirichlet(np.full(NUM_SOUNDS, 0.3), num_units).astype(np.float32)
    durations = np.log(random.dirichlet(np.full(MAX_STEPS + 1, 0.5), num_units) + 1e-4).astype(np.float32)
    return AlignmentUnits(sounds, durations), random.normal(0, 2, (num_steps, NUM_SOUNDS)).astype(np.float32)


def walked(units: AlignmentUnits, scores: np.ndarray) -> ViterbiPath:
    path = ViterbiPath(NUM_SOUNDS)
    path.add(units)
    for step in scores:
        path.push(step)
    return path


@given(st.integers(0, 2**31), st.integers(1, 6), st.integers(1, 2 * MAX_STEPS))
@settings(deadline=None)
def test_no_other_way_is_likelier(seed, num_units, num_steps):
    units, scores = drawn(seed, num_units, num_steps)
    path = walked(units, scores)
    traced = path.trace(num_units)
    assert [unit for unit, _ in reversed(traced)] == list(range(num_units))
    ends = [end for _, end in reversed(traced)]
    assert ends[-1] == num_steps
    assert ends == sorted(ends)
    assert score_of(units, scores, ends) == pytest.approx(best_score(units, scores), rel=1e-4, abs=1e-3)


@given(st.integers(0, 2**31), st.integers(2, 100), st.lists(st.integers(1, 20), max_size=10))
@settings(deadline=None)
def test_text_in_pieces_before_the_audio_gives_the_same_path(seed, num_units, cuts):
    units, scores = drawn(seed, num_units, 50)
    path, at = ViterbiPath(NUM_SOUNDS), 0
    for size in [*cuts, num_units]:
        path.add(AlignmentUnits(units.sounds[at : at + size], units.durations[at : at + size]))
        at += size
    for step in scores:
        path.push(step)
    assert path.trace() == walked(units, scores).trace()


@given(st.integers(0, 2**31), st.integers(1, 30))
@settings(deadline=None)
def test_what_is_settled_is_not_traced_again_and_the_rest_stays(seed, kept_steps):
    units, scores = drawn(seed, 30, 120)
    path = walked(units, scores)
    whole = path.trace()
    behind = [(unit, end) for unit, end in whole if end <= 120 - kept_steps]
    if behind:
        path.commit(behind[0][0] + 1, behind[0][1])
        assert path.trace() == whole[: whole.index(behind[0])]


def test_work_and_memory_do_not_grow_with_text_that_is_far_ahead():
    units, scores = drawn(3, 4_000, 60)
    path = walked(units, scores)
    assert all(arrivals.sources.size <= BEAM_UNITS + 60 * MAX_STEPS for arrivals in path._arrivals)
    assert max(arrivals.low + arrivals.sources.size for arrivals in path._arrivals) < 1_000


def test_without_text_nothing_is_reached():
    path = ViterbiPath(NUM_SOUNDS)
    for step in np.zeros((5, NUM_SOUNDS), np.float32):
        path.push(step)
    assert path.trace() == []


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
