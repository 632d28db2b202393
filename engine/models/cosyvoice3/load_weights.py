"""The released files into modules, ready to run: ``llm.pt`` or ``llm.rl.pt``, ``flow.pt``, ``hift.pt`` (spec 1)."""

from __future__ import annotations

from pathlib import Path

import torch

from engine.errors import CheckpointError
from engine.layers.transformer import Rope
from engine.models.cosyvoice3.config import CosyTalkerConfig, FlowConfig, HiftConfig
from engine.models.cosyvoice3.flow import Flow
from engine.models.cosyvoice3.hift import Hift
from engine.models.cosyvoice3.hift_weights import adapt as adapt_hift
from engine.models.cosyvoice3.speech_lm import SpeechLM
from engine.weights.loader import config_errors_of, uninitialized
from engine.weights.torch_pickle import State, load_state

TALKER_FILES = ("llm.pt", "llm.rl.pt")
FLOW_FILE, HIFT_FILE = "flow.pt", "hift.pt"
TIED_HEAD = "llm.model.lm_head.weight"


def talker_file(folder: Path, wanted: str | None) -> Path:
    """The one that is wanted, or the first that is there."""
    names = TALKER_FILES if wanted is None else (wanted,)
    for name in names:
        if (folder / name).exists():
            return folder / name
    raise CheckpointError(f"{folder} has no {' and no '.join(names)}")


def adapt_talker(state: State) -> State:
    """The text table is there once more, as a head that nothing uses."""
    return {name: tensor for name, tensor in state.items() if name != TIED_HEAD}


def tied_bytes(config: CosyTalkerConfig) -> int:
    return 8 * config.text_vocab_size * config.transformer.hidden_size


def load_talker(path: Path, config: CosyTalkerConfig, dtype: torch.dtype, device: torch.device) -> SpeechLM:
    with config_errors_of(path.parent), uninitialized():
        talker = SpeechLM(config)
    load_state(talker, path, dtype, device, adapt_talker, tied_bytes(config))
    for child in talker.modules():
        if isinstance(child, Rope):
            child.reset(device)
    talker.eval().requires_grad_(False).fuse()
    return talker


def load_flow(folder: Path, config: FlowConfig, dtype: torch.dtype, device: torch.device) -> Flow:
    """Products in ``dtype``, all else in fp32."""
    with config_errors_of(folder), uninitialized():
        flow = Flow(config)
    load_state(flow, folder / FLOW_FILE, torch.float32, device)
    flow.eval().requires_grad_(False).fuse()
    flow.to_compute(dtype)
    return flow


def load_hift(folder: Path, config: HiftConfig, device: torch.device) -> Hift:
    """In fp32, whatever else computes in, and the pitch in fp64: so it is read."""
    with config_errors_of(folder), uninitialized():
        hift = Hift(config)
    load_state(hift, folder / HIFT_FILE, torch.float64, device, adapt_hift)
    hift.eval().requires_grad_(False).fuse()
    return hift
