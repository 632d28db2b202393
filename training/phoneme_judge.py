"""Words left out or said twice, found in the phonemes that the second listener hears.

The phonemes of a sentence come from flite's lexicon; those heard come from the listener's frames by a path that pays
for every change. Aligning the two shows runs of phonemes that are missing or too many; runs of three and more count,
since single ones are slips of the listener.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file

from training.flite import PHONEME_IDS, SPEECH_LEVEL, Word, spoken_words
from training.phoneme_recognizer import FRAME_LABELS, Listener, features
from training.speech import LABEL_SAMPLES

# Nepers: what a frame of another phoneme must bring.
CHANGE_COST = 3.0
MIN_RUN = 3
SILENCE = PHONEME_IDS["pau"]

Phones = list[int]
# Places in what was said and in what was heard that belong together; None where one has nothing.
Pair = tuple[int | None, int | None]


@dataclass(frozen=True)
class PhonemeTranscription:
    # Of the sentence.
    phones: int
    # Phonemes wrong, lost or too many.
    errors: int
    words: int
    # Words of which nothing was heard.
    missing: int
    # Runs of phonemes too many.
    repeated: int


@dataclass(frozen=True)
class PhoneScore:
    """Sums over sentences."""

    heard: Sequence[PhonemeTranscription]

    @property
    def phone_error_rate(self) -> float:
        return sum(one.errors for one in self.heard) / max(1, sum(one.phones for one in self.heard))

    @property
    def missing_rate(self) -> float:
        return sum(one.missing for one in self.heard) / max(1, sum(one.words for one in self.heard))

    @property
    def repeated_rate(self) -> float:
        return sum(one.repeated for one in self.heard) / max(1, sum(one.words for one in self.heard))


def best_path(scores: npt.NDArray[np.float32], change_cost: float = CHANGE_COST) -> Phones:
    """Log-probabilities [frames, phonemes] -> the phonemes of the best path, silence left out."""
    total = scores[0].copy()
    came_from = np.zeros(scores.shape, np.int64)
    stay = np.arange(scores.shape[1])
    for frame in range(1, len(scores)):
        best = int(total.argmax())
        changed = total[best] - change_cost > total
        came_from[frame] = np.where(changed, best, stay)
        total = np.maximum(total, total[best] - change_cost) + scores[frame]
    path = [int(total.argmax())]
    for frame in range(len(scores) - 1, 0, -1):
        path.append(int(came_from[frame, path[-1]]))
    path.reverse()
    changes = [phone for place, phone in enumerate(path) if place == 0 or phone != path[place - 1]]
    return [phone for phone in changes if phone != SILENCE]


def align(said: Phones, heard: Phones) -> list[Pair]:
    """The cheapest way from one to the other."""
    cost = np.zeros((len(said) + 1, len(heard) + 1), np.int64)
    cost[:, 0], cost[0] = np.arange(len(said) + 1), np.arange(len(heard) + 1)
    for i, one in enumerate(said):
        for j, other in enumerate(heard):
            cost[i + 1, j + 1] = min(cost[i, j] + (one != other), cost[i, j + 1] + 1, cost[i + 1, j] + 1)
    i, j = len(said), len(heard)
    pairs: list[Pair] = []
    while i or j:
        if i and j and cost[i, j] == cost[i - 1, j - 1] + (said[i - 1] != heard[j - 1]):
            i, j = i - 1, j - 1
            pairs.append((i, j))
        elif i and cost[i, j] == cost[i - 1, j] + 1:
            i -= 1
            pairs.append((i, None))
        else:
            j -= 1
            pairs.append((None, j))
    return pairs[::-1]


def compare(words: Sequence[Word], heard: Phones) -> PhonemeTranscription:
    said = [phone for word in words for phone in word.phonemes]
    pairs = align(said, heard)
    runs = [(kind, list(run)) for kind, run in groupby(pairs, _kind)]
    lost = {i for kind, run in runs if kind == "lost" and len(run) >= MIN_RUN for i, _ in run}
    extra = sum(kind == "extra" and len(run) >= MIN_RUN for kind, run in runs)
    errors = sum(i is None or j is None or said[i] != heard[j] for i, j in pairs)
    return PhonemeTranscription(len(said), errors, len(words), sum(places <= lost for places in _places(words)), extra)


def _kind(pair: Pair) -> str:
    return "lost" if pair[1] is None else "extra" if pair[0] is None else "met"


def _places(words: Sequence[Word]) -> Iterator[set[int | None]]:
    """Where the phonemes of each word stand in the sentence."""
    place = 0
    for word in words:
        yield set(range(place, place + len(word.phonemes)))
        place += len(word.phonemes)


class PhoneJudge:
    def __init__(self, weights: Path) -> None:
        self._listener = Listener().eval()
        self._listener.load_state_dict({name: value.float() for name, value in load_file(weights).items()})

    @torch.inference_mode()
    def hear(self, signal: npt.NDArray[np.float32]) -> Phones:
        """The phonemes in 16 kHz speech."""
        step = LABEL_SAMPLES * FRAME_LABELS
        audio = torch.from_numpy(signal)[None, : len(signal) // step * step]
        audio = audio * (SPEECH_LEVEL / audio.square().mean().sqrt().clamp_min(1e-4))
        return best_path(self._listener(features(audio, torch.ones(1))).log_softmax(1)[0].T.numpy())

    def judge(self, text: str, signal: npt.NDArray[np.float32]) -> PhonemeTranscription:
        return compare(spoken_words(text), self.hear(signal))
