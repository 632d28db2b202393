"""hift.pt as the vocoder wants it: both spellings of a weight norm become the weight itself."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from engine.errors import CheckpointError

# Some files carry it before every name.
PREFIX = "generator."
# Gain and direction.
SPELLINGS = (("parametrizations.weight.original0", "parametrizations.weight.original1"), ("weight_g", "weight_v"))


def adapt(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Raises ``CheckpointError`` naming the tensor."""
    found = {name.removeprefix(PREFIX): tensor for name, tensor in state.items()}
    for gain_name, direction_name in SPELLINGS:
        stems = [name.removesuffix(gain_name) for name in found if name.endswith(gain_name)]
        for stem in stems:
            if stem + direction_name not in found:
                raise CheckpointError(f"hift.pt: tensor {stem}{gain_name} stands without {stem}{direction_name}")
            gain, direction = found.pop(stem + gain_name), found.pop(stem + direction_name)
            found[f"{stem}weight"] = fold_weight_norm(f"{stem}weight", gain, direction)
    return found


def fold_weight_norm(name: str, gain: Tensor, direction: Tensor) -> Tensor:
    """gain * direction / |direction| in fp64, the length taken for each output channel."""
    if direction.dim() != 3 or gain.shape != (len(direction), 1, 1):
        shapes = f"a gain {list(gain.shape)} and a direction {list(direction.shape)}"
        raise CheckpointError(f"hift.pt: tensor {name} is {shapes}; they do not fit")
    return torch._weight_norm(direction.double(), gain.double(), 0)
