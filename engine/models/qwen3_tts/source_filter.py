"""The codec decoder of the embedded voice, whose last part is a vocoder: pulses and noise, each through a
minimum-phase filter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.layers.streaming import StatefulLayer, assign_state
from engine.models.qwen3_tts.codec_decoder import CodecFront, CodecState, ConvNeXtBlock
from engine.models.qwen3_tts.config import CodecDecoderConfig

# Samples per hop of the vocoder, and FFT size of a filtered hop: longer impulse responses alias.
HOP, FFT = 120, 1024
TAIL = FFT - HOP
MIDDLE_HZ, MAX_OCTAVES = 140.0, 1.4
# Constant log gains: with equal ones, noise would replace low pulses in training.
PULSE_GAIN, NOISE_GAIN = -2.0, -7.0
# Period of the noise, in frames.
NOISE_FRAMES = 64


@dataclass
class Controls:
    """Pitch [B, T, 1] in Hz and the cepstra [B, T, order] of both filters."""

    hz: Tensor
    pulses: Tensor
    noise: Tensor

    def every_hop(self, before: Controls) -> Controls:
        """Double the rate by inserting the mean of each two controls; ``before`` precedes the first."""
        return Controls(*(halve_steps(getattr(before, f.name), getattr(self, f.name)) for f in fields(self)))

    def at(self, place: slice) -> Controls:
        return Controls(self.hz[:, place], self.pulses[:, place], self.noise[:, place])


def halve_steps(first: Tensor, x: Tensor) -> Tensor:
    before = torch.cat((first, x[:, :-1]), 1)
    return torch.stack(((before + x) / 2, x), 2).flatten(1, 2)


@dataclass
class VocoderPast:
    """State of the vocoder: last control, phase of the pulses [B, 1] in cycles, and tail of the filters [B, TAIL].

    ``begun`` [B, 1] is 0 for rows without any audio so far.
    """

    control: Controls
    cycles: Tensor
    tail: Tensor
    begun: Tensor

    @classmethod
    def none(cls, controls: Controls) -> VocoderPast:
        zero = torch.zeros_like(controls.hz[:, 0])
        return cls(controls.at(slice(1)), zero, zero.new_zeros(len(zero), TAIL), zero)


class Vocoder(nn.Module):
    """Renders controls every ``HOP`` samples to speech."""

    def __init__(self, sample_rate: int) -> None:
        super().__init__()
        self.sample_rate = sample_rate
        self.register_buffer("ramp", torch.arange(1, HOP + 1) / HOP, persistent=False)
        self.register_buffer("window", torch.hann_window(2 * HOP), persistent=False)

    def forward(self, controls: Controls, noise: Tensor, past: VocoderPast) -> tuple[Tensor, VocoderPast]:
        """Controls of T hops and white noise [B, T * HOP] -> speech [B, T * HOP], and the state after them."""
        before, length = past.control, noise.shape[1]
        source, cycles = self.pulse_train(controls.hz[..., 0], before.hz[..., 0], past.cycles)
        spectra = self.filtered(source, controls.pulses, before.pulses, past.begun)
        spectra = spectra + self.filtered(noise, controls.noise, before.noise, past.begun)
        pieces = torch.fft.irfft(spectra, FFT).transpose(1, 2)
        joined = F.fold(pieces, (1, length + TAIL), (1, FFT), stride=(1, HOP))[:, 0, 0]
        joined = joined + F.pad(past.tail, (0, length))
        end = VocoderPast(controls.at(slice(-1, None)), cycles, joined[:, length:], torch.ones_like(past.begun))
        return joined[:, :length].clamp(-1.0, 1.0), end

    def pulse_train(self, hz: Tensor, first: Tensor, cycles: Tensor) -> tuple[Tensor, Tensor]:
        """Return band-limited pulses of unit power [B, T * HOP] for a pitch [B, T] per hop, and the phase at their end.

        ``first`` [B, 1] is the pitch before them, ``cycles`` [B, 1] the phase. The pulses are the sum of all harmonics.
        """
        pitch = torch.lerp(torch.cat((first, hz[:, :-1]), 1)[..., None], hz[..., None], self.ramp).flatten(1)
        turned = (pitch / self.sample_rate).double().cumsum(1) + cycles
        half_turn = math.pi * (turned - turned.round()).float()
        harmonics = (self.sample_rate / 2 / pitch).floor()
        sine = half_turn.sin()
        at_pulse = sine.abs() < 1e-4
        ratio = ((2 * harmonics + 1) * half_turn).sin() / sine.masked_fill(at_pulse, 1.0)
        pulses = (ratio.where(~at_pulse, 2 * harmonics + 1) - 1) * (2 * harmonics).rsqrt()
        return pulses, turned[:, -1:].frac().to(cycles.dtype)

    def filtered(self, source: Tensor, cepstra: Tensor, before: Tensor, begun: Tensor) -> Tensor:
        """Return spectra [B, T, FFT // 2 + 1] of the hops, each crossfaded from the previous filter to its own."""
        rise, fall = self.window.split(HOP)
        hops = source.unflatten(1, (-1, HOP))
        fading = torch.cat((hops[:, :1] * begun[..., None], hops[:, 1:]), 1) * fall
        logs = torch.fft.rfft(torch.cat((before, cepstra), 1), FFT)
        filters = torch.polar(logs.real.exp(), logs.imag)  # takes less time than the exponential of complex numbers
        return torch.fft.rfft(hops * rise, FFT) * filters[:, 1:] + torch.fft.rfft(fading, FFT) * filters[:, :-1]


class SourceFilterDecoder(CodecFront):
    """Predicts pitch and cepstra every 10 ms, from which a vocoder renders PCM. It computes in fp32."""

    def __init__(self, config: CodecDecoderConfig) -> None:
        super().__init__(config)
        assert config.source_filter is not None
        sizes = config.source_filter
        self.blocks = nn.ModuleList(ConvNeXtBlock(config.latent_dim) for _ in range(sizes.control_blocks))
        self.norm = nn.LayerNorm(config.latent_dim)
        self.orders = (1, sizes.pulse_cepstra, sizes.noise_cepstra)
        self.controls = nn.Linear(config.latent_dim, sum(self.orders))
        # A flat ``VocoderPast`` without ``begun``, which follows from the number of frames.
        self.past = StatefulLayer(sum(self.orders) + 1 + TAIL, 1)
        # High quefrencies of a cepstrum are small; the constant gain is in its first number.
        orders = self.orders[1:]
        scale = torch.cat([torch.arange(1, order + 1).rsqrt() for order in orders])
        gain = [
            F.pad(torch.tensor([log_gain]), (0, n - 1))
            for log_gain, n in zip((PULSE_GAIN, NOISE_GAIN), orders, strict=True)
        ]
        self.register_buffer("cepstrum_scale", scale, persistent=False)
        self.register_buffer("cepstrum_gain", torch.cat(gain), persistent=False)
        self.vocoder = Vocoder(config.sample_rate)
        noise = np.random.default_rng(0).standard_normal((NOISE_FRAMES, config.frame_samples), np.float32)
        self.register_buffer("noise", torch.from_numpy(noise), persistent=False)
        self.num_state_values = assign_state(self)

    def read_controls(self, latent: Tensor, state: CodecState | None = None) -> Controls:
        """Predict the controls, every 10 ms, of a latent [B, codebook_dim, T]."""
        x = self.upsampled(latent, state)
        for block in self.blocks:
            x = block(x, None if state is None else state.values)
        with torch.autocast(x.device.type, enabled=False):
            return self.to_controls(self.controls(self.norm(x.transpose(1, 2).float())))

    def to_controls(self, raw: Tensor) -> Controls:
        hz = MIDDLE_HZ * raw[..., :1].clamp(-MAX_OCTAVES, MAX_OCTAVES).exp2()
        return Controls(hz, *(raw[..., 1:] * self.cepstrum_scale + self.cepstrum_gain).split(self.orders[1:], 2))

    def decode_latent(self, latent: Tensor, state: CodecState | None = None) -> Tensor:
        """Decode; the noise depends only on the frame numbers of a row."""
        first = latent.new_zeros(len(latent), dtype=torch.long) if state is None else state.num_frames.clone()
        controls = self.read_controls(latent, state)
        past = VocoderPast.none(controls)
        own = None
        if state is not None:
            own = state.values[:, self.past.offset : self.past.offset + self.past.num_state_values]
            past = self.read_past(own, first, past.control)
        frames = (first[:, None] + torch.arange(latent.shape[2], device=latent.device)) % NOISE_FRAMES
        noise = self.noise[frames].flatten(1)
        speech, end = self.vocoder(controls.every_hop(past.control), noise, past)
        if own is not None:
            control = (part[:, 0] for part in vars(end.control).values())
            own.copy_(torch.cat((*control, end.cycles, end.tail), 1))
        return speech

    def read_past(self, own: Tensor, num_frames: Tensor, start: Controls) -> VocoderPast:
        """Read the flat state of rows that have decoded ``num_frames``; rows with none begin at ``start``."""
        begun = (num_frames > 0)[:, None]
        *kept, cycles, tail = own.split((*self.orders, 1, TAIL), 1)
        control = (
            torch.where(begun[..., None], k[:, None], s) for k, s in zip(kept, vars(start).values(), strict=True)
        )
        return VocoderPast(Controls(*control), cycles, tail, begun.float())
