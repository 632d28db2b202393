"""Weights between the stages and their averages; and one line of JSON per report."""

from __future__ import annotations

import copy
import json
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

START_S = time.monotonic()
# Ends the name of a tensor's scales.
SCALE = ":scale"


def say(stage_owner: str, **values: object) -> None:
    print(json.dumps({"at_s": round(time.monotonic() - START_S), "who": stage_owner, **values}), flush=True)


def half_state(module: nn.Module) -> dict[str, Tensor]:
    """The state in fp16; integers as they are."""
    state = module.state_dict()
    return {k: (v.half() if v.is_floating_point() else v).contiguous().cpu() for k, v in state.items()}


def save(module: nn.Module, path: Path) -> None:
    """Written under another name first, so that a reader never sees half a file."""
    temporary = path.with_suffix(".part")
    save_file(half_state(module), temporary)
    temporary.rename(path)


def load(module: nn.Module, path: Path) -> None:
    """Load what ``save`` or ``save_in_bytes`` wrote; raises when a name or shape does not fit."""
    state = load_file(path)
    scales = {name: state.pop(name + SCALE) for name in list(state) if name + SCALE in state}
    module.load_state_dict(state | {name: state[name].float() * scale.float() for name, scale in scales.items()})


def save_in_bytes(module: nn.Module, path: Path) -> None:
    """Half as large as ``save``: one byte a weight of a matrix or kernel, and one scale for each of its rows."""
    state = half_state(module)
    for name, value in [pair for pair in state.items() if pair[1].ndim > 1]:
        scale = (value.float().abs().amax(tuple(range(1, value.ndim)), keepdim=True) / 127).half().clamp_min(1e-6)
        state[name] = (value.float() / scale.float()).round().clamp(-127, 127).to(torch.int8)
        state[name + SCALE] = scale
    save_file(state, path)


class Average:
    """A moving average of a module's weights, quick at first."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.module = copy.deepcopy(module).eval().requires_grad_(False)
        self._decay = decay

    @torch.no_grad()
    def follow(self, module: nn.Module, step: int) -> None:
        decay = min(self._decay, (1 + step) / (10 + step))
        ours = [v for v in self.module.state_dict().values() if v.is_floating_point()]
        theirs = [v for v in module.state_dict().values() if v.is_floating_point()]
        torch._foreach_lerp_(ours, theirs, 1 - decay)
