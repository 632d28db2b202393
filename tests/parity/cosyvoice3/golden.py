"""Golden vectors and this engine's parts on the checkpoint that they were made from."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from engine.models.cosyvoice3.config import CosyVoice3Config
from engine.models.cosyvoice3.flow import Flow
from engine.models.cosyvoice3.hift import Hift
from engine.models.cosyvoice3.load import load_flow, load_hift, load_model
from engine.models.cosyvoice3.model import CosyVoice3
from engine.models.cosyvoice3.settings import CosyVoice3Settings

FOLDER = Path(os.environ.get("VOICEWIRE_COSYVOICE3_VECTORS", Path(__file__).parent / "vectors"))
CPU = torch.device("cpu")


@dataclass
class Golden:
    """``part("flow")`` are the tensors of one stage, by name; ``folder`` holds the checkpoint."""

    folder: Path
    config: CosyVoice3Config
    device: torch.device = CPU
    dtype: torch.dtype = torch.float32

    def part(self, name: str) -> dict[str, Tensor]:
        found: dict[str, Tensor] = load_file(FOLDER / f"{name}.safetensors")
        return found

    @cached_property
    def about(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((FOLDER / "about.json").read_text(encoding="utf-8"))
        return found

    @cached_property
    def model(self) -> CosyVoice3:
        return load_model(self.folder, self.config, CosyVoice3Settings(), self.device, self.dtype)

    @cached_property
    def flow(self) -> Flow:
        return load_flow(self.folder, self.config.flow, self.dtype, self.device)

    @cached_property
    def hift(self) -> Hift:
        return load_hift(self.folder, self.config.hift, self.device)


def close(found: Tensor, expected: Tensor, relative: float = 1e-4) -> None:
    """Within a share of the largest value (spec 9.4)."""
    torch.testing.assert_close(found, expected, atol=relative * float(expected.abs().max()), rtol=0)
