"""Find when each character of an utterance is spoken, while text and speech arrive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sessions.alignment.acoustic_model import AcousticModel, step_samples
from sessions.alignment.letter_model import is_coarticulated, predict_units
from sessions.alignment.viterbi import ViterbiPath
from sessions.alignment.weights import AlignerWeights, load_weights

Pcm = npt.NDArray[np.float32]

# A character's end is final after so much more speech: 240 ms.
FINALIZE_DELAY_STEPS = 12
# The path through the last 600 ms can still change.
HISTORY_STEPS = 30
# The pause before and after the speech is a unit.
EDGE = " "
MAX_WORD_CHARS = 60


class Aligner(Protocol):
    """Aligns one utterance. How PCM and text are cut does not change the times, if the text arrives in time."""

    @property
    def bounds(self) -> list[int]:
        """Final boundaries in samples: character ``i`` is spoken from ``bounds[i]`` to ``bounds[i + 1]``. They never
        change and never decrease."""
        ...

    def estimate(self) -> list[int]:
        """``bounds``, followed by the current estimate of further boundaries."""
        ...

    def add_text(self, text: str) -> None: ...

    def end_text(self) -> None: ...

    def push(self, pcm: Pcm) -> None: ...

    def finish(self) -> None:
        """Finalize every character: all speech has been pushed."""
        ...


# Creates an aligner for speech at a sample rate.
AlignerFactory = Callable[[int], Aligner]


class ForcedAligner:
    """Aligns by the most likely path of letters through sounds."""

    def __init__(self, sample_rate: int, weights: AlignerWeights | None = None) -> None:
        self._weights = weights or load_weights()
        self._model = AcousticModel(self._weights.acoustic, sample_rate)
        self._path = ViterbiPath(self._weights.acoustic.log_prior.size)
        self._step_samples = step_samples(sample_rate)
        self._num_samples = 0
        self._num_chars = 0
        # The word without an end so far.
        self._word = ""
        # Ends of the final units, in steps; unit 0 is the pause before the first character.
        self._ends: list[int] = []
        self._add_units(EDGE)

    @property
    def bounds(self) -> list[int]:
        return self._in_samples(self._ends)

    def estimate(self) -> list[int]:
        return self._in_samples(self._ends + self._new_ends(self._path.trace(), self._path.num_steps))

    def add_text(self, text: str) -> None:
        self._num_chars += len(text)
        for character in text:
            if is_coarticulated(character):
                self._word += character
            else:
                self._end_word()
                self._add_units(character)
            if len(self._word) >= MAX_WORD_CHARS:
                self._end_word()

    def end_text(self) -> None:
        self._end_word()
        self._add_units(EDGE)

    def push(self, pcm: Pcm) -> None:
        self._num_samples += pcm.size
        for block in self._model.push(pcm):
            self._advance(block)

    def finish(self) -> None:
        for block in self._model.finish():
            self._advance(block)
        traced = self._path.trace(self._path.num_units) or self._path.trace()
        self._ends += self._new_ends(traced, self._path.num_steps)
        self._estimate_tail()

    def _advance(self, block: Pcm) -> None:
        for scores in block:
            self._path.push(scores)
        traced, now = self._path.trace(), self._path.num_steps
        self._ends += self._new_ends(traced, now - FINALIZE_DELAY_STEPS)
        for unit, end in traced:
            if end <= now - HISTORY_STEPS:
                self._path.commit(unit + 1, end)
                break

    def _new_ends(self, traced: list[tuple[int, int]], until: int) -> list[int]:
        """Return the ends up to a step of characters that are not final yet."""
        known, floor = len(self._ends), self._ends[-1] if self._ends else 0
        new = [(unit, max(end, floor)) for unit, end in reversed(traced) if known <= unit <= self._num_chars]
        follows_on = bool(new) and new[0][0] == known
        return [end for _, end in new if end <= until] if follows_on else []

    def _estimate_tail(self) -> None:
        """Spread the remaining text over the remaining speech, where no path leads to the end of the text."""
        missing, start = self._num_chars + 1 - len(self._ends), self._ends[-1] if self._ends else 0
        left = self._path.num_steps - start
        self._ends += [start + left * (number + 1) // missing for number in range(missing)]

    def _end_word(self) -> None:
        if self._word:
            self._add_units(self._word)
        self._word = ""

    def _add_units(self, run: str) -> None:
        self._path.add(predict_units(self._weights.letters, run))

    def _in_samples(self, ends: list[int]) -> list[int]:
        return [min(end * self._step_samples, self._num_samples) for end in ends]
