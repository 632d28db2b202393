"""What the flow, the speech tokenizer and the speaker network want to see of a recording (spec 6.3).

pcm [T] in fp32 in, fp32 frames out, on the CPU.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.layers.mel_filters import mel_filters

MEL_FFT, MEL_HOP, MEL_RATE = 1920, 480, 24_000
# Of the speech tokenizer and the speaker network.
ENCODER_RATE = 16_000
WHISPER_FFT, WHISPER_HOP, WHISPER_BINS = 400, 160, 128
FBANK_FRAME, FBANK_HOP, FBANK_FFT, FBANK_BINS = 400, 160, 512, 80
FBANK_LOW_HZ = 20.0
PRE_EMPHASIS = 0.97
ROLL_OFF, FILTER_ZEROS = 0.99, 6


def resample(pcm: Tensor, rate_in: int, rate_out: int) -> Tensor:
    """A sinc under a Hann window, six zeros wide, ceil(T * out / in) samples."""
    common = math.gcd(rate_in, rate_out)
    step_in, step_out = rate_in // common, rate_out // common
    if step_in == step_out:
        return pcm
    cut_off = min(step_in, step_out) * ROLL_OFF
    width = math.ceil(FILTER_ZEROS * step_in / cut_off)
    places = torch.arange(-width, width + step_in, dtype=torch.float64) / step_in
    phases = torch.arange(0, -step_out, -1, dtype=torch.float64) / step_out
    times = ((phases[:, None] + places) * cut_off).clamp(-FILTER_ZEROS, FILTER_ZEROS)
    window = (times * math.pi / FILTER_ZEROS / 2).cos() ** 2
    kernel = (torch.sinc(times) * window * cut_off / step_in).float()
    padded = F.pad(pcm, (width, width + step_in))
    out = F.conv1d(padded[None, None], kernel[:, None], stride=step_in)[0].T.flatten()
    return out[: math.ceil(step_out * len(pcm) / step_in)]


def flow_mel(pcm: Tensor, bins: int) -> Tensor:
    """24 kHz -> [T // 480, bins], natural logarithm of magnitudes."""
    padding = (MEL_FFT - MEL_HOP) // 2
    padded = F.pad(pcm[None, None], (padding, padding), mode="reflect")[0, 0]
    spectrum = torch.stft(
        padded, MEL_FFT, MEL_HOP, window=torch.hann_window(MEL_FFT), center=False, return_complex=True
    )
    magnitude = torch.view_as_real(spectrum).pow(2).sum(-1).add(1e-9).sqrt()
    return (mel_filters(bins, MEL_RATE, MEL_FFT) @ magnitude).clamp(min=1e-5).log().T.contiguous()


def whisper_mel(pcm: Tensor) -> Tensor:
    """16 kHz -> [128, T // 160], as Whisper hears it."""
    window = torch.hann_window(WHISPER_FFT)
    spectrum = torch.stft(pcm, WHISPER_FFT, WHISPER_HOP, window=window, return_complex=True)
    power = spectrum[:, :-1].abs() ** 2
    mel = (mel_filters(WHISPER_BINS, ENCODER_RATE, WHISPER_FFT) @ power).clamp(min=1e-10).log10()
    return (torch.maximum(mel, mel.max() - 8.0) + 4.0) / 4.0


def speaker_fbank(pcm: Tensor) -> Tensor:
    """16 kHz -> [frames, 80], as Kaldi's filter banks, less their mean over time."""
    frames = pcm.unfold(0, FBANK_FRAME, FBANK_HOP)
    frames = frames - frames.mean(dim=1, keepdim=True)
    before = F.pad(frames[:, None], (1, 0), mode="replicate")[:, 0, :-1]
    window = torch.hann_window(FBANK_FRAME, periodic=False) ** 0.85
    power = torch.fft.rfft((frames - PRE_EMPHASIS * before) * window, FBANK_FFT).abs() ** 2
    energies = power[:, : FBANK_FFT // 2] @ kaldi_filters().T
    fbank = energies.clamp(min=torch.finfo(torch.float32).eps).log()
    return fbank - fbank.mean(dim=0, keepdim=True)


def kaldi_filters() -> Tensor:
    """Triangles that are straight on the mel scale, over 20 Hz to half the rate: [80, FFT / 2]."""

    def mel(hz: Tensor) -> Tensor:
        return 1127.0 * (1.0 + hz / 700.0).log()

    low, high = mel(torch.tensor([FBANK_LOW_HZ, ENCODER_RATE / 2], dtype=torch.float64))
    edges = low + (high - low) / (FBANK_BINS + 1) * torch.arange(FBANK_BINS + 2, dtype=torch.float64)
    places = mel(torch.arange(FBANK_FFT // 2, dtype=torch.float64) * ENCODER_RATE / FBANK_FFT)
    left, center, right = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (places - left) / (center - left), (right - places) / (right - center)
    return torch.minimum(rising, falling).clamp(min=0).float()
