"""24 kHz speech to latents at 12.5 Hz. Serves training alone: the voice speaks without it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engine.models.qwen3_tts.source_filter import MIDDLE_HZ
from training.pitch import track_pitch
from training.settings import Sizes
from training.spectral import log_mel

NUM_BANDS = 100


class ConvNeXt(nn.Module):
    """Depthwise convolution over time, then a wide pointwise pair; [B, C, T] to the same."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv1d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.widen = nn.Linear(channels, 3 * channels)
        self.narrow = nn.Linear(3 * channels, channels)
        self.scale = nn.Parameter(torch.full((channels,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.narrow(F.gelu(self.widen(self.norm(self.depthwise(x).transpose(1, 2)))))
        return x + (self.scale * y).transpose(1, 2)


class Encoder(nn.Module):
    """[B, T * 1920] -> [B, codebook_dim, T]: log-mel at 100 Hz, with ``sees_pitch`` also pitch, then three halvings."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self._max_hz = sizes.max_hz
        self._sees_pitch = sizes.pulse_cepstra > 0
        width = sizes.encoder_channels
        layers: list[nn.Module] = [nn.Conv1d(NUM_BANDS + 2 * self._sees_pitch, width, 7, padding=3)]
        layers += [ConvNeXt(width) for _ in range(sizes.encoder_blocks)]
        for _ in range(3):
            layers += [nn.Conv1d(width, width, 4, stride=2, padding=1), ConvNeXt(width)]
        layers += [ConvNeXt(width), nn.Conv1d(width, sizes.codebook_dim, 1)]
        self.layers = nn.Sequential(*layers)

    def forward(self, audio: Tensor) -> Tensor:
        with torch.autocast(audio.device.type, enabled=False):
            features = log_mel(audio, num_bands=NUM_BANDS, max_hz=self._max_hz) / 4 + 1
            if self._sees_pitch:
                pitch = track_pitch(audio)
                both = torch.stack(((pitch.hz / MIDDLE_HZ).log2() * 2, pitch.voiced.float()), 1)
                features = torch.cat((features, both[:, :, 1::2]), 1)
        return self.layers(features)
