"""The numbers of the aligner, as ``training/aligner.py`` made them: two small networks in one file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

Floats = npt.NDArray[np.float32]

FILE = Path(__file__).with_name("weights.safetensors")


@dataclass(frozen=True)
class AcousticWeights:
    # (weight [in, out], bias [out]) of each.
    layers: tuple[tuple[Floats, Floats], ...]
    # [num_sounds]: how common each sound is.
    log_prior: Floats

    def scores(self, inputs: Floats) -> Floats:
        """[n, in] -> log-likelihood ratios [n, num_sounds]."""
        for weight, bias in self.layers[:-1]:
            inputs = np.maximum(inputs @ weight + bias, 0.0)
        weight, bias = self.layers[-1]
        return log_softmax(inputs @ weight + bias) - self.log_prior


@dataclass(frozen=True, eq=False)
class LetterModelWeights:
    # [places, characters, width]: what a character at a place around a letter adds to the hidden layer.
    embedding: Floats
    bias: Floats
    sounds: tuple[Floats, Floats]
    durations: tuple[Floats, Floats]

    def predict(self, windows: npt.NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Character numbers [n, places] -> log-probabilities of sounds [n, num_sounds], of durations [n, max + 1]."""
        hidden = self.bias + self.embedding[np.arange(windows.shape[1]), windows].sum(1)
        hidden = np.maximum(hidden, 0.0)
        sounds, durations = (hidden @ weight + bias for weight, bias in (self.sounds, self.durations))
        return log_softmax(sounds), log_softmax(durations)


@dataclass(frozen=True)
class AlignerWeights:
    acoustic: AcousticWeights
    letters: LetterModelWeights

    @classmethod
    def from_tensors(cls, tensors: dict[str, npt.NDArray[np.generic]]) -> AlignerWeights:
        held = {name: np.asarray(value, np.float32) for name, value in tensors.items()}

        def layer(name: str) -> tuple[Floats, Floats]:
            return held[f"{name}.weight"], held[f"{name}.bias"]

        num_layers = sum(name.startswith("ear.") and name.endswith(".weight") for name in held)
        acoustic = AcousticWeights(tuple(layer(f"ear.{number}") for number in range(num_layers)), held["ear.log_prior"])
        letters = LetterModelWeights(
            held["letters.embedding"], held["letters.bias"], layer("letters.sounds"), layer("letters.durations")
        )
        return cls(acoustic, letters)


def log_softmax(values: Floats) -> Floats:
    shifted = values - values.max(-1, keepdims=True)
    result: Floats = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result


@cache
def load_weights() -> AlignerWeights:
    """Load the weights that come with the package, once per process."""
    return AlignerWeights.from_tensors(load_file(FILE))
