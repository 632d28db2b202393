"""Mel to PCM: the vocoder CausalHiFTGenerator in pieces that equal one pass (docs/design/cosyvoice3.md).

``forward`` advances rows by some frames each; what they need of their past is in a state of fixed size. It works
``LEAD_FRAMES`` behind the mel, and its PCM comes ``WITHHELD_FRAMES`` behind: pitch looks ahead, the network does, and
neighboring spectra overlap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.layers.streaming import StatefulLayer, assign_state
from engine.models.cosyvoice3.config import HiftConfig
from engine.models.cosyvoice3.hift_source import (
    PITCH_LOOK_RIGHT_FRAMES,
    PITCH_PAST_FRAMES,
    F0Predictor,
    HarmonicSource,
    MatrixStft,
)
from engine.ops.flow import FlowOps, snake


class LeftConv(StatefulLayer):
    """Output t reads inputs up to t; zeros stand before the first."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int, dilation: int = 1) -> None:
        super().__init__(channels_in, (kernel - 1) * dilation)
        self.dilation = dilation
        self.weight = nn.Parameter(torch.empty(channels_out, channels_in, kernel))
        self.bias = nn.Parameter(torch.empty(channels_out))

    def forward(self, x: Tensor, state: Tensor | None = None) -> Tensor:
        return self.convolve(self.concat_state(x, state))

    def convolve(self, joined: Tensor) -> Tensor:
        return F.conv1d(joined, self.weight, self.bias, dilation=self.dilation)


class RepeatConv(StatefulLayer):
    """Every input ``rate`` times, then a causal convolution: not the transposed one of other vocoders."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int, rate: int) -> None:
        super().__init__(channels_in, math.ceil((kernel - 1) / rate))
        self.rate, self.kernel = rate, kernel
        self.weight = nn.Parameter(torch.empty(channels_out, channels_in, kernel))
        self.bias = nn.Parameter(torch.empty(channels_out))

    def forward(self, x: Tensor, state: Tensor | None = None) -> Tensor:
        repeated = self.concat_state(x, state).repeat_interleave(self.rate, dim=-1)
        spare = self.context * self.rate - (self.kernel - 1)
        return F.conv1d(repeated[..., spare:], self.weight, self.bias)


class StateSlice(StatefulLayer):
    """A slice of the state that is read and written by hand: [R, width, context]."""


class HiftSnake(nn.Module):
    """x + sin(alpha x)^2 / (alpha + 1e-9), alpha per channel, stored as it is."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(channels))

    def forward(self, x: Tensor) -> Tensor:
        return snake(x, self.alpha)


class ResBlock(nn.Module):
    """For each dilation: x += conv(snake(dilated conv(snake(x))))."""

    def __init__(self, channels: int, kernel: int, dilations: tuple[int, ...]) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList(LeftConv(channels, channels, kernel, dilation) for dilation in dilations)
        self.convs2 = nn.ModuleList(LeftConv(channels, channels, kernel) for _ in dilations)
        self.activations1 = nn.ModuleList(HiftSnake(channels) for _ in dilations)
        self.activations2 = nn.ModuleList(HiftSnake(channels) for _ in dilations)
        self.ops = FlowOps()

    def forward(self, x: Tensor, state: Tensor | None = None) -> Tensor:
        layers = zip(self.activations1, self.convs1, self.activations2, self.convs2, strict=True)
        for first, dilated, second, plain in layers:
            x = x + self.convolve(plain, second, self.convolve(dilated, first, x, state), state)
        return x

    def convolve(self, conv: LeftConv, snake: HiftSnake, x: Tensor, state: Tensor | None) -> Tensor:
        """``conv`` of the snake of x."""
        if state is None:
            return conv(snake(x))
        return conv.convolve(self.ops.snake_join(x, snake.alpha, conv.of(state)))


class DownConv(nn.Module):
    """Windows of 2 * rate inputs every ``rate``: output m reads inputs m * rate - (rate - 1) .. (m + 1) * rate."""

    def __init__(self, channels_in: int, channels_out: int, rate: int) -> None:
        super().__init__()
        self.rate = rate
        self.weight = nn.Parameter(torch.empty(channels_out, channels_in, 2 * rate if rate > 1 else 1))
        self.bias = nn.Parameter(torch.empty(channels_out))

    @property
    def num_past(self) -> int:
        return self.rate - 1

    def forward(self, x: Tensor) -> Tensor:
        """x [B, in, past + ...] with its ``num_past`` earlier inputs."""
        return F.conv1d(x, self.weight, self.bias, stride=self.rate)


# Of the first convolution; the pitch looks three ahead, and neighbouring spectra overlap into one more.
LOOK_RIGHT_FRAMES = 4
WITHHELD_FRAMES = LOOK_RIGHT_FRAMES + PITCH_LOOK_RIGHT_FRAMES + 1
# Mel frames that only enter the state before the first is worked on.
LEAD_FRAMES = WITHHELD_FRAMES - 1
# Marks an utterance whose number of frames is not known yet.
NO_END = 1 << 40
MAX_MAGNITUDE = 100.0
POST_SLOPE = 0.01
POST_KERNEL = 7


@dataclass(slots=True)
class HiftState:
    """values [R, S] fp32: every layer's past; phase [R, harmonics] fp64, in turns; num_frames [R]: frames worked on.

    All zero at the start, but for the first mel frames. Updated in place.
    """

    values: Tensor
    phase: Tensor
    num_frames: Tensor


class Hift(nn.Module):
    """Everything in hift.pt by its released names, weight norms folded."""

    def __init__(self, config: HiftConfig) -> None:
        super().__init__()
        if config.look_right_frames != LOOK_RIGHT_FRAMES:
            raise ValueError(f"conv_pre_look_right is {config.look_right_frames}; built here: {LOOK_RIGHT_FRAMES}")
        self.config = config
        channels = [config.base_channels >> i for i in range(len(config.upsample_rates) + 1)]
        self.f0_predictor = F0Predictor(config)
        self.m_source = HarmonicSource(config)
        self.conv_pre = nn.Conv1d(config.mel_bins, config.base_channels, config.look_right_frames + 1)
        self.ups = nn.ModuleList(
            RepeatConv(channels[i], channels[i + 1], kernel, rate)
            for i, (kernel, rate) in enumerate(zip(config.upsample_kernels, config.upsample_rates, strict=True))
        )
        self.source_downs = nn.ModuleList(
            DownConv(config.istft_n_fft + 2, wide, rate)
            for wide, rate in zip(channels[1:], down_rates(config), strict=True)
        )
        self.source_resblocks = nn.ModuleList(
            ResBlock(wide, kernel, dilations)
            for wide, kernel, dilations in zip(
                channels[1:], config.source_resblock_kernels, config.source_resblock_dilations, strict=True
            )
        )
        self.resblocks = nn.ModuleList(
            ResBlock(wide, kernel, dilations)
            for wide in channels[1:]
            for kernel, dilations in zip(config.resblock_kernels, config.resblock_dilations, strict=True)
        )
        self.conv_post = LeftConv(channels[-1], config.istft_n_fft + 2, POST_KERNEL)
        self.spectra = MatrixStft(config.istft_n_fft, config.istft_hop)
        self.past = HiftStateLayers(config)
        self.num_state_values = assign_state(self)

    @property
    def frame_samples(self) -> int:
        return self.config.frame_samples

    def fuse(self) -> None:
        """Compute derived tensors once the weights are loaded. All but the pitch is in fp32 from here on."""
        for part in self.children():
            part.to(torch.float64 if part is self.f0_predictor else torch.float32)
        self.m_source.fuse()
        self.spectra.fuse(self.conv_pre.weight.device)

    def use(self, ops: FlowOps) -> None:
        for block in (*self.source_resblocks, *self.resblocks):
            block.ops = ops

    def new_state(self, num_rows: int) -> HiftState:
        like = self.conv_pre.weight
        return HiftState(
            values=like.new_zeros(num_rows, self.num_state_values),
            phase=like.new_zeros(num_rows, self.m_source.num_harmonics, dtype=torch.float64),
            num_frames=torch.zeros(num_rows, dtype=torch.long, device=like.device),
        )

    def fill(self, state: HiftState, row: int, mel: Tensor) -> None:
        """The first ``LEAD_FRAMES`` of an utterance, mel [bins, LEAD_FRAMES], into a zeroed row."""
        self.past.mel.of(state.values)[row, :, -LEAD_FRAMES:] = mel

    def forward(self, mel: Tensor, state: HiftState, end: Tensor) -> Tensor:
        """The next n frames of B rows: mel [B, bins, n] -> PCM [B, n * frame_samples], ``WITHHELD_FRAMES`` behind.

        ``end`` [B]: frames of an utterance that is over, else ``NO_END``. Past the end come zero frames, and what comes
        out for them, as what comes out before the first sample, is to be dropped.
        """
        num_new, first = mel.shape[-1], state.num_frames.clone()
        window = self.past.mel.concat_state(mel, state.values)
        spectrum = self.excite(window, first, end, state)
        ahead = window[..., PITCH_PAST_FRAMES : PITCH_PAST_FRAMES + num_new + self.config.look_right_frames]
        x = self.conv_pre(ahead)
        for stage, down in enumerate(self.source_downs):
            x = self.upsample(stage, x, state.values)
            if stage == len(self.ups) - 1:
                x = self.delay_by_one(x, first, state.values)
            spare = self.source_downs[0].num_past - down.num_past
            num_spectra = x.shape[-1] * down.rate
            source = down(spectrum[..., spare : spare + down.num_past + num_spectra + (down.rate > 1)])
            x = self.mix(stage, x, source, state.values)
        magnitude, angle = self.polar(x, state.values)
        state.num_frames += num_new
        return self.limit(self.synthesize(magnitude, angle, first, end, state.values))

    def excite(self, window: Tensor, first: Tensor, end: Tensor, state: HiftState) -> Tensor:
        """mel [B, bins, 8 + n + 7] around the frames -> spectra of the source, with those that the first stage looks
        back to and the one it looks ahead to [B, n_fft + 2, 14 + 120 n + 1]."""
        num_new = window.shape[-1] - PITCH_PAST_FRAMES - LEAD_FRAMES
        pitch = self.f0_predictor.window(
            window[..., : PITCH_PAST_FRAMES + num_new + 1 + PITCH_LOOK_RIGHT_FRAMES], first
        )
        excitation, phase = self.m_source(pitch, state.phase, first)
        state.phase.copy_(phase[:, num_new - 1])
        whole = excitation.flatten(1)
        past = self.past.source
        joined = torch.cat((past.of(state.values)[:, 0], whole), dim=-1)
        kept = joined[:, num_new * self.frame_samples :][:, : past.context]
        past.of(state.values)[:, 0] = kept
        begin = first * self.frame_samples
        wanted = torch.arange(-past.context, (num_new * self.frame_samples) + self.spectra.reach, device=begin.device)
        place = (
            reflect_indices(begin[:, None] + wanted, end[:, None] * self.frame_samples) - begin[:, None] + past.context
        )
        samples = joined.gather(1, place.clamp(0, joined.shape[1] - 1))
        spectrum = self.spectra(samples)
        number = self.hops(first)[:, None] - self.source_downs[0].num_past
        number = number + torch.arange(spectrum.shape[-1], device=begin.device)
        return spectrum * (number >= 0)[:, None]

    def hops(self, frames: Tensor) -> Tensor:
        return frames * (self.frame_samples // self.config.istft_hop)

    def upsample(self, stage: int, x: Tensor, state: Tensor | None) -> Tensor:
        return self.ups[stage](F.leaky_relu(x, self.config.lrelu_slope), state)

    def delay_by_one(self, x: Tensor, first: Tensor, state: Tensor) -> Tensor:
        """Position t reads x at t - 1; at the very start, where there is none, x at 1."""
        last = self.past.shifted.of(state)
        before = torch.where((first == 0)[:, None, None], x[..., 1:2], last)
        shifted = torch.cat((before, x[..., :-1]), dim=-1)
        last.copy_(x[..., -1:])
        return shifted

    def mix(self, stage: int, x: Tensor, source: Tensor, state: Tensor | None) -> Tensor:
        x = x + self.source_resblocks[stage](source, state)
        num_blocks = len(self.config.resblock_kernels)
        blocks = self.resblocks[stage * num_blocks : (stage + 1) * num_blocks]
        return sum(block(x, state) for block in blocks) / num_blocks

    def polar(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """[B, C, T] -> magnitude and angle [B, bins, T]."""
        x = self.conv_post(F.leaky_relu(x, POST_SLOPE), state)
        magnitude, angle = x.chunk(2, dim=1)
        return magnitude.exp().clamp(max=MAX_MAGNITUDE), angle.sin()

    def synthesize(self, magnitude: Tensor, angle: Tensor, first: Tensor, end: Tensor, state: Tensor) -> Tensor:
        """Spectra of n frames -> the samples that are ready by then and were not given out yet."""
        number = self.hops(first)[:, None] + torch.arange(magnitude.shape[-1], device=first.device)
        exists = number <= self.hops(end)[:, None]
        tail, held = self.past.overlap.of(state), self.past.held.of(state)
        samples, rest = self.spectra.inverse(magnitude, angle, exists, tail)
        tail.copy_(rest)
        joined = torch.cat((held[:, 0], samples), dim=-1)
        held[:, 0] = joined[:, -held.shape[-1] :]
        return joined[:, : samples.shape[-1]]

    def limit(self, pcm: Tensor) -> Tensor:
        return pcm.clamp(-self.config.audio_limit, self.config.audio_limit)


class HiftStateLayers(nn.Module):
    """State beside the layers' pasts."""

    def __init__(self, config: HiftConfig) -> None:
        super().__init__()
        hop, overlap = config.istft_hop, config.istft_n_fft - config.istft_hop
        furthest = (down_rates(config)[0] - 1) * hop + config.istft_n_fft // 2
        self.mel = StateSlice(config.mel_bins, PITCH_PAST_FRAMES + LEAD_FRAMES)
        self.source = StateSlice(1, furthest)
        self.shifted = StateSlice(config.base_channels >> len(config.upsample_rates), 1)
        self.overlap = StateSlice(2, overlap)
        self.held = StateSlice(1, config.frame_samples - config.istft_n_fft // 2)


def down_rates(config: HiftConfig) -> list[int]:
    """Spectra per position of each stage: 15, 3, 1."""
    rates = config.upsample_rates
    return [math.prod(rates[i + 1 :]) for i in range(len(rates))]


def reflect_indices(number: Tensor, end: Tensor) -> Tensor:
    """Sample numbers, those outside of 0 .. end - 1 mirrored at the first and the last sample."""
    inside = number.abs()
    return torch.where(inside >= end, 2 * (end - 1) - inside, inside)
