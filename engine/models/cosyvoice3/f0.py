"""Pitch of each mel frame, in float64: phase adds up what an error in it makes (specs/cosyvoice3.md 5.1)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.models.cosyvoice3.config import HiftConfig

LOOK_RIGHT_FRAMES = 3
FIRST_KERNEL, KERNEL = LOOK_RIGHT_FRAMES + 1, 3
NUM_LEFT_LAYERS = 4
# Mel frames before a frame that its pitch depends on.
PAST_FRAMES = NUM_LEFT_LAYERS * (KERNEL - 1)


class F0Predictor(nn.Module):
    """Frame f reads mel frames f - 8 .. f + 3. Bare names are those of hift.pt."""

    def __init__(self, config: HiftConfig) -> None:
        super().__init__()
        wide = config.f0_channels
        layers: list[nn.Module] = [nn.Conv1d(config.mel_bins, wide, FIRST_KERNEL)]
        for _ in range(NUM_LEFT_LAYERS):
            layers += [nn.ELU(), nn.Conv1d(wide, wide, KERNEL)]
        self.condnet = nn.ModuleList([*layers, nn.ELU()])
        self.classifier = nn.Linear(wide, 1)

    @property
    def convolutions(self) -> list[nn.Module]:
        return [layer for layer in self.condnet if isinstance(layer, nn.Conv1d)]

    def forward(self, mel: Tensor) -> Tensor:
        """One pass: mel [B, bins, F], whole -> f0 in Hz [B, F], fp64 inside."""
        ahead, *left = self.convolutions
        x = F.elu(convolve(ahead, F.pad(mel.double(), (0, LOOK_RIGHT_FRAMES))))
        for layer in left:
            x = F.elu(convolve(layer, F.pad(x, (KERNEL - 1, 0))))
        return self.pitch(x)

    def window(self, mel: Tensor, first: Tensor) -> Tensor:
        """A run from anywhere: mel [B, bins, 8 + n + 3] around n frames whose first is number ``first`` [B] -> [B, n].

        Frames before the utterance's own are as good as absent, whatever they hold.
        """
        ahead, *left = self.convolutions
        x = convolve(ahead, mel.double())
        number = first[:, None] - PAST_FRAMES + torch.arange(x.shape[-1], device=mel.device)
        exists = (number >= 0)[:, None]
        x = F.elu(x) * exists
        for layer in left:
            exists = exists[..., KERNEL - 1 :]
            x = F.elu(convolve(layer, x)) * exists
        return self.pitch(x)

    def pitch(self, x: Tensor) -> Tensor:
        weight, bias = self.classifier.weight.double(), self.classifier.bias.double()
        return F.linear(x.transpose(1, 2), weight, bias)[..., 0].abs().float()


def convolve(layer: nn.Module, x: Tensor) -> Tensor:
    """x [B, in, T] -> [B, out, T - kernel + 1] as a product of matrices, which keeps all of float64 on every device."""
    weight, bias = layer.weight.double(), layer.bias.double()
    runs = x.unfold(-1, weight.shape[-1], 1).permute(0, 2, 1, 3).flatten(2)
    return F.linear(runs, weight.flatten(1), bias).transpose(1, 2)
