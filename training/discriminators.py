"""Critics of the codec's speech: folded waveforms at several periods and spectra at several resolutions."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

Judgement = tuple[Tensor, list[Tensor]]
PERIODS = (2, 3, 5, 7, 11)
WINDOWS = (512, 1024, 2048)


class PeriodDiscriminator(nn.Module):
    """The waveform folded into rows of ``period`` samples, judged by strided convolutions along time."""

    def __init__(self, period: int, channels: int) -> None:
        super().__init__()
        self._period = period
        widths = [1, channels, 4 * channels, 16 * channels, 32 * channels]
        self.layers = nn.ModuleList(weight_norm(nn.Conv2d(a, b, (5, 1), (3, 1), (2, 0))) for a, b in pairwise(widths))
        self.layers.append(weight_norm(nn.Conv2d(widths[-1], widths[-1], (5, 1), padding=(2, 0))))
        self.last = weight_norm(nn.Conv2d(widths[-1], 1, (3, 1), padding=(1, 0)))

    def forward(self, audio: Tensor) -> Judgement:
        folded = F.pad(audio, (0, -audio.shape[1] % self._period)).unflatten(1, (-1, self._period))[:, None]
        return _judge(self.layers, self.last, folded)


class SpectrumDiscriminator(nn.Module):
    """The complex spectrum as a two-channel picture."""

    def __init__(self, window: int, channels: int) -> None:
        super().__init__()
        self._window = window
        shape = [(2, (3, 9), (1, 1)), *[(channels, (3, 9), (1, 2))] * 3, (channels, (3, 3), (1, 1))]
        self.layers = nn.ModuleList(
            weight_norm(nn.Conv2d(wide, channels, kernel, stride, (kernel[0] // 2, kernel[1] // 2)))
            for wide, kernel, stride in shape
        )
        self.last = weight_norm(nn.Conv2d(channels, 1, 3, padding=1))

    def forward(self, audio: Tensor) -> Judgement:
        window = torch.hann_window(self._window, device=audio.device)
        spectrum = torch.stft(audio.float(), self._window, self._window // 4, window=window, return_complex=True)
        scaled = torch.view_as_real(spectrum / self._window**0.5).permute(0, 3, 2, 1)
        return _judge(self.layers, self.last, scaled)


def _judge(layers: nn.ModuleList, last: nn.Module, x: Tensor) -> Judgement:
    features = []
    for layer in layers:
        x = F.leaky_relu(layer(x), 0.1)
        features.append(x)
    return last(x), features


class Discriminators(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.critics = nn.ModuleList([PeriodDiscriminator(period, channels) for period in PERIODS])
        self.critics.extend(SpectrumDiscriminator(window, channels) for window in WINDOWS)

    def forward(self, audio: Tensor) -> list[Judgement]:
        return [critic(audio) for critic in self.critics]


def critic_loss(real: list[Judgement], fake: list[Judgement]) -> Tensor:
    """Least squares: real to 1, made to 0."""
    to_one = [(score.float() - 1).square().mean() for score, _ in real]
    to_zero = [score.float().square().mean() for score, _ in fake]
    return torch.stack(to_one).mean() + torch.stack(to_zero).mean()


def fooling_loss(real: list[Judgement], fake: list[Judgement]) -> tuple[Tensor, Tensor]:
    """(adversarial, feature matching) for the decoder; features are compared relative to their own size."""
    adversarial = torch.stack([(f[0].float() - 1).square().mean() for f in fake]).mean()
    matches = [
        F.l1_loss(ours.float(), theirs.float().detach()) / theirs.float().detach().abs().mean().clamp_min(1e-3)
        for r, f in zip(real, fake, strict=True)
        for ours, theirs in zip(f[1], r[1], strict=True)
    ]
    return adversarial, torch.stack(matches).mean()
