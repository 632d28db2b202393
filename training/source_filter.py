"""A codec decoder whose last part is a vocoder: pulses and noise, each through a minimum-phase filter.

The front (codebooks, transformer, upsampling) is the engine's. It gives, every 10 ms, the pitch and the cepstra of two
filters. The phase of the pulses is the decoder's own: codes need not describe it, and no loss compares it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engine.layers.streaming import CausalConv1d, assign_state
from engine.models.qwen3_tts.codec_decoder import (
    CodecState,
    ConvNeXtBlock,
    PreTransformer,
    SplitQuantizer,
    UpsampleStage,
)
from training.layout import codec_config
from training.pitch import HOP
from training.settings import SAMPLE_RATE, Sizes

# Samples that a filtered hop lasts; filters that ring longer alias.
FFT = 1024
MIDDLE_HZ = 140.0
MAX_OCTAVES = 1.4
# Log gains of the filters before training: with equal ones, noise takes the place of low pulses.
PULSE_GAIN, NOISE_GAIN = -2.0, -7.0
# Noise at inference repeats after so many frames.
NOISE_FRAMES = 64


@dataclass
class Controls:
    """Every 10 ms: pitch [B, T] and the cepstra [B, T, order] of both filters."""

    hz: Tensor
    pulses: Tensor
    noise: Tensor

    def every_hop(self, before: Controls | None = None) -> Controls:
        """The same every 5 ms: between two controls, their mean; ``before`` is the control before the first."""
        pairs = ((one, None if before is None else getattr(before, name)) for name, one in vars(self).items())
        return Controls(*(_halve_steps(one, first) for one, first in pairs))

    def last(self) -> Controls:
        return Controls(self.hz[:, -1:], self.pulses[:, -1:], self.noise[:, -1:])


def _halve_steps(x: Tensor, first: Tensor | None) -> Tensor:
    before = torch.cat((x[:, :1] if first is None else first, x[:, :-1]), 1)
    return torch.stack(((before + x) / 2, x), 2).flatten(1, 2)


@dataclass
class Memory:
    """What a stream keeps between frames; empty at its beginning."""

    codec: CodecState
    control: Controls | None = None
    # [B, 1], of the pulses.
    cycles: Tensor | None = None
    # [B, FFT - HOP], of the filters.
    tail: Tensor | None = None


def pulse_train(hz: Tensor, memory: Memory | None = None) -> Tensor:
    """Band-limited pulses of unit power [B, T * HOP] at a pitch [B, T] per hop: the sum of all harmonics."""
    first = hz[:, :1] if memory is None or memory.control is None else memory.control.hz
    ramp = torch.arange(1, HOP + 1, device=hz.device) / HOP
    pitch = torch.lerp(torch.cat((first, hz[:, :-1]), 1)[..., None], hz[..., None], ramp).flatten(1)
    cycles = (pitch / SAMPLE_RATE).double().cumsum(1)
    if memory is not None:
        cycles = cycles if memory.cycles is None else cycles + memory.cycles
        memory.cycles = cycles[:, -1:].frac()
    half_turn = math.pi * (cycles - cycles.round()).float()
    harmonics = (SAMPLE_RATE / 2 / pitch).floor()
    sine = half_turn.sin()
    at_pulse = sine.abs() < 1e-4
    ratio = ((2 * harmonics + 1) * half_turn).sin() / sine.masked_fill(at_pulse, 1.0)
    return (ratio.where(~at_pulse, 2 * harmonics + 1) - 1) * (2 * harmonics).rsqrt()


def filtered(source: Tensor, cepstra: Tensor, before: Tensor | None) -> Tensor:
    """Spectra [B, T, FFT // 2 + 1] of each hop of ``source``, faded into the next one, through its filter.

    With the filter ``before`` the first hop there is one spectrum more, of what that filter fades out.
    """
    if before is not None:
        cepstra = torch.cat((before, cepstra), 1)
    window = torch.hann_window(2 * HOP, device=source.device)
    pieces = F.pad(source, (0 if before is None else HOP, HOP)).unfold(1, 2 * HOP, HOP) * window
    return torch.fft.rfft(pieces, FFT) * torch.fft.rfft(cepstra, FFT).exp()


def render(controls: Controls, noise: Tensor, memory: Memory | None = None) -> Tensor:
    """Controls of T hops and white noise [B, T * HOP] to 24 kHz speech [B, T * HOP]."""
    before = None if memory is None else memory.control
    pulses = filtered(pulse_train(controls.hz, memory), controls.pulses, before and before.pulses)
    spectra = pulses + filtered(noise, controls.noise, before and before.noise)
    pieces = torch.fft.irfft(spectra, FFT).transpose(1, 2)
    joined = F.fold(pieces, (1, (pieces.shape[2] - 1) * HOP + FFT), (1, FFT), stride=(1, HOP))[:, 0, 0]
    speech, tail = joined[:, 0 if before is None else HOP :].split((noise.shape[1], FFT - HOP), 1)
    if memory is not None:
        if memory.tail is not None:
            speech = speech + F.pad(memory.tail, (0, noise.shape[1] - memory.tail.shape[1]))
        memory.control, memory.tail = controls.last(), tail
    return speech.clamp(-1.0, 1.0)


class SourceFilterDecoder(nn.Module):
    """Codes [B, K, T] to PCM [B, T * 1920], causal."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.config = config = codec_config(sizes)
        self.quantizer = SplitQuantizer(config)
        self.pre_conv = CausalConv1d(config.codebook_dim, config.latent_dim, 3)
        self.pre_transformer = PreTransformer(config)
        self.upsample = nn.ModuleList(UpsampleStage(config.latent_dim, rate) for rate in config.upsampling_ratios)
        self.blocks = nn.ModuleList(ConvNeXtBlock(config.latent_dim) for _ in range(sizes.control_blocks))
        self.norm = nn.LayerNorm(config.latent_dim)
        self.orders = (1, sizes.pulse_cepstra, sizes.noise_cepstra)
        self.controls = nn.Linear(config.latent_dim, sum(self.orders))
        nn.init.normal_(self.controls.weight, std=0.01)
        nn.init.zeros_(self.controls.bias)
        noise = torch.randn(NOISE_FRAMES, config.frame_samples, generator=torch.Generator().manual_seed(0))
        self.register_buffer("noise", noise, persistent=False)
        self.num_state_values = assign_state(self)

    def dequantize(self, codes: Tensor) -> Tensor:
        """codes [B, K, T] -> latent [B, codebook_dim, T]."""
        return self.quantizer(codes)

    def new_memory(self, num_rows: int) -> Memory:
        values = self.controls.weight.new_zeros(num_rows, self.num_state_values)
        return Memory(CodecState(values, torch.zeros(num_rows, dtype=torch.long, device=values.device)))

    def read_controls(self, latent: Tensor, state: CodecState | None = None) -> Controls:
        """latent [B, codebook_dim, T] -> controls every 10 ms."""
        values = None if state is None else state.values
        x = self.pre_conv(latent, values).transpose(1, 2)
        x = self.pre_transformer.decode(x, state).transpose(1, 2)
        if state is not None:
            state.num_frames += latent.shape[2]
        for block in (*self.upsample, *self.blocks):
            x = block(x, values)
        with torch.autocast(x.device.type, enabled=False):
            raw, pulses, noise = self.controls(self.norm(x.transpose(1, 2).float())).split(self.orders, 2)
            hz = MIDDLE_HZ * raw[..., 0].clamp(-MAX_OCTAVES, MAX_OCTAVES).exp2()
            return Controls(hz, _cepstrum(pulses, PULSE_GAIN), _cepstrum(noise, NOISE_GAIN))

    def decode_latent(self, latent: Tensor, memory: Memory | None = None) -> Tensor:
        """latent [B, codebook_dim, T] -> PCM [B, T * 1920]; noise depends on the frame's number alone."""
        state = None if memory is None else memory.codec
        first = 0 if state is None else int(state.num_frames[0])
        before = None if memory is None else memory.control
        controls = self.read_controls(latent, state).every_hop(before)
        frames = torch.arange(first, first + latent.shape[2], device=latent.device) % len(self.noise)
        return render(controls, self.noise[frames].flatten().expand(len(latent), -1), memory)

    def forward(self, codes: Tensor) -> Tensor:
        return self.decode_latent(self.dequantize(codes))


def _cepstrum(raw: Tensor, gain: float) -> Tensor:
    """High quefrencies are small; so are the steps of their weights."""
    scale = torch.arange(1, raw.shape[2] + 1, device=raw.device).rsqrt()
    return raw * scale + F.pad(raw.new_full((1,), gain), (0, raw.shape[2] - 1))
