"""A recording to the one vector that stands for its speaker: log-mel and ECAPA-TDNN."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.layers.mel_filters import mel_filters
from engine.models.qwen3_tts.encoder_config import SpeakerEncoderConfig

FFT_SAMPLES = 1024
HOP_SAMPLES = 256
MIN_VARIANCE = 1e-12


def log_mel(pcm: Tensor, filters: Tensor) -> Tensor:
    """pcm [T] -> [bands, T // hop], the frames not centred."""
    padding = (FFT_SAMPLES - HOP_SAMPLES) // 2
    padded = F.pad(pcm[None, None], (padding, padding), mode="reflect")[0, 0]
    window = torch.hann_window(FFT_SAMPLES, device=pcm.device)
    spectrum = torch.stft(padded, FFT_SAMPLES, HOP_SAMPLES, window=window, center=False, return_complex=True)
    magnitude = torch.view_as_real(spectrum).pow(2).sum(-1).add(1e-9).sqrt()
    return (filters @ magnitude).clamp(min=1e-5).log()


def same_conv(channels_in: int, channels_out: int, kernel: int, dilation: int = 1) -> nn.Conv1d:
    return nn.Conv1d(channels_in, channels_out, kernel, dilation=dilation, padding="same", padding_mode="reflect")


class TimeDelay(nn.Module):
    def __init__(self, channels_in: int, channels_out: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.conv = same_conv(channels_in, channels_out, kernel, dilation)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.conv(x))


class Res2Net(nn.Module):
    """The channels in ``scale`` parts; each part but the first hears the one before it."""

    def __init__(self, channels: int, scale: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.scale = scale
        part = channels // scale
        self.blocks = nn.ModuleList(TimeDelay(part, part, kernel, dilation) for _ in range(scale - 1))

    def forward(self, x: Tensor) -> Tensor:
        first, *parts = x.chunk(self.scale, dim=1)
        out = [first]
        for i, (block, part) in enumerate(zip(self.blocks, parts, strict=True)):
            out.append(block(part if i == 0 else part + out[-1]))
        return torch.cat(out, dim=1)


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.conv1 = same_conv(channels, squeezed, 1)
        self.conv2 = same_conv(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(dim=2, keepdim=True)
        return x * torch.sigmoid(self.conv2(F.relu(self.conv1(mean))))


class SpeakerBlock(nn.Module):
    def __init__(self, config: SpeakerEncoderConfig, index: int) -> None:
        super().__init__()
        channels = config.channels[index]
        self.tdnn1 = TimeDelay(config.channels[index - 1], channels, 1, 1)
        self.res2net_block = Res2Net(
            channels, config.res2net_scale, config.kernel_sizes[index], config.dilations[index]
        )
        self.tdnn2 = TimeDelay(channels, channels, 1, 1)
        self.se_block = SqueezeExcite(channels, config.se_channels)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.se_block(self.tdnn2(self.res2net_block(self.tdnn1(x))))


class StatisticsPooling(nn.Module):
    """Mean and deviation over time, weighted by attention that has heard the plain ones."""

    def __init__(self, channels: int, attention_channels: int) -> None:
        super().__init__()
        self.tdnn = TimeDelay(3 * channels, attention_channels, 1, 1)
        self.conv = same_conv(attention_channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, T] -> [B, 2C, 1]."""
        even = torch.full_like(x[:, :1], 1 / x.shape[2])
        context = torch.cat((x, *(part.expand_as(x) for part in self._statistics(x, even))), dim=1)
        weights = self.conv(torch.tanh(self.tdnn(context))).softmax(dim=2)
        return torch.cat(self._statistics(x, weights), dim=1)

    @staticmethod
    def _statistics(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        mean = (weights * x).sum(2, keepdim=True)
        variance = (weights * (x - mean).pow(2)).sum(2, keepdim=True)
        return mean, variance.clamp(min=MIN_VARIANCE).sqrt()


class SpeakerEncoder(nn.Module):
    """Everything under ``speaker_encoder.`` in the released file, by the released names."""

    def __init__(self, config: SpeakerEncoderConfig) -> None:
        super().__init__()
        self.config = config
        first, *middle, last = config.channels
        self.blocks = nn.ModuleList(
            [
                TimeDelay(config.num_mels, first, config.kernel_sizes[0], config.dilations[0]),
                *(SpeakerBlock(config, i) for i in range(1, len(middle) + 1)),
            ]
        )
        self.mfa = TimeDelay(last, last, config.kernel_sizes[-1], config.dilations[-1])
        self.asp = StatisticsPooling(last, config.attention_channels)
        self.fc = same_conv(2 * last, config.size, 1)
        self.filters: Tensor | None = None

    def forward(self, pcm: Tensor) -> Tensor:
        """pcm [T] at the config's rate -> [size]; the whole clip is heard."""
        if self.filters is None or self.filters.device != pcm.device:
            self.filters = mel_filters(self.config.num_mels, self.config.sample_rate, FFT_SAMPLES).to(pcm.device)
        x = log_mel(pcm.float(), self.filters)[None].to(self.fc.weight.dtype)
        heard = []
        for block in self.blocks:
            x = block(x)
            heard.append(x)
        return self.fc(self.asp(self.mfa(torch.cat(heard[1:], dim=1))))[0, :, 0]
