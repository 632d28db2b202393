"""A second listener of our own: says which phoneme sounds in every 20 ms, and has no language model to guess with.

Trained on other synthetic voices (flite's awb and kal16) at changed speeds, vocal tracts, colours and noises, so that
the voices it judges are strangers to it. About a second of sound is all it looks at.

    python -m training.phoneme_recognizer listener.safetensors --seconds 300 --workers 2 --prose prose.txt.xz
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from training.checkpoints import Average, save, say
from training.flite import PHONEMES
from training.schedule import Every, until, warm_cosine
from training.speech import LABEL_HZ, LABEL_SAMPLES, Speech
from training.synthesis import SynthesisPool, SynthesisSettings
from training.text import TextSettings

VOICES = ("awb", "kal16")
NUM_BANDS = 64
NUM_FFT = 512
RATE_HZ = 16_000
# Labels of 10 ms in a frame of the listener's.
FRAME_LABELS = 2


@dataclass(frozen=True)
class ListenerSettings:
    width: int = 256
    blocks: int = 8
    kernel: int = 7
    batch: int = 96
    crop_labels: int = 300
    learning_rate: float = 2e-3
    warmup_steps: int = 200
    min_speed: float = 0.75
    max_speed: float = 1.35
    # How far the spectrum is stretched apart from the speed, as a vocal tract of another length would.
    max_warp: float = 0.2
    # Random tilt and bumps of the log spectrum, in nepers.
    max_colour: float = 1.5
    min_snr_db: float = 5.0
    max_snr_db: float = 45.0
    max_audio_h: float = 40.0
    least_audio_h: float = 0.2


def mel_filters(warp: Tensor) -> Tensor:
    """Triangles from 60 Hz to 7.6 kHz, [batch, bands, bins], for spectra stretched by ``warp`` [batch]."""

    def mel(hz: Tensor) -> Tensor:
        return 2595 * torch.log10(1 + hz / 700)

    low, high = mel(torch.tensor(60.0)), mel(torch.tensor(7600.0))
    points = torch.linspace(float(low), float(high), NUM_BANDS + 2, device=warp.device)
    edges = (700 * (10 ** (points / 2595) - 1))[None, :, None] * warp[:, None, None]
    bins = torch.linspace(0, RATE_HZ / 2, NUM_FFT // 2 + 1, device=warp.device)
    rise = (bins - edges[:, :-2]) / (edges[:, 1:-1] - edges[:, :-2])
    fall = (edges[:, 2:] - bins) / (edges[:, 2:] - edges[:, 1:-1])
    return torch.minimum(rise, fall).clamp_min(0)


def features(audio: Tensor, warp: Tensor) -> Tensor:
    """16 kHz [batch, n] -> log-mel [batch, bands, n // 160], each band to zero mean over time."""
    window = torch.hann_window(NUM_FFT, device=audio.device)
    margin = (NUM_FFT - LABEL_SAMPLES) // 2
    padded = F.pad(audio, (margin, NUM_FFT - LABEL_SAMPLES - margin))
    power = torch.stft(padded, NUM_FFT, LABEL_SAMPLES, window=window, center=False, return_complex=True).abs() ** 2
    mel = (mel_filters(warp) @ power + 1e-5).log()
    return mel - mel.mean(2, keepdim=True)


class Block(nn.Module):
    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.depth = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width)
        self.norm = nn.GroupNorm(1, width)
        self.wide = nn.Conv1d(width, 2 * width, 1)
        self.narrow = nn.Conv1d(2 * width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.narrow(F.gelu(self.wide(self.norm(self.depth(x)))))


class Listener(nn.Module):
    def __init__(self, settings: ListenerSettings = ListenerSettings()) -> None:
        super().__init__()
        self.stem = nn.Conv1d(NUM_BANDS, settings.width, 6, stride=FRAME_LABELS, padding=2)
        self.blocks = nn.Sequential(*(Block(settings.width, settings.kernel) for _ in range(settings.blocks)))
        self.head = nn.Conv1d(settings.width, len(PHONEMES), 1)

    def forward(self, mel: Tensor) -> Tensor:
        """[batch, bands, labels] -> logits [batch, phonemes, labels // 2]."""
        return self.head(self.blocks(self.stem(mel)))


def disguise(audio: Tensor, phones: Tensor, settings: ListenerSettings) -> tuple[Tensor, Tensor]:
    """The crop as another speaker in another room would give it: (log-mel, phonemes of each frame)."""
    batch, device = len(audio), audio.device
    speed = settings.min_speed + (settings.max_speed - settings.min_speed) * torch.rand((), device=device)
    num_labels = int(phones.shape[1] / speed) // FRAME_LABELS * FRAME_LABELS
    audio = F.interpolate(audio[:, None], num_labels * LABEL_SAMPLES, mode="linear", align_corners=False)[:, 0]
    middles = (torch.arange(num_labels // FRAME_LABELS, device=device) + 0.5) * FRAME_LABELS
    labels = phones[:, (middles * phones.shape[1] / num_labels).long()]
    snr_db = settings.min_snr_db + (settings.max_snr_db - settings.min_snr_db) * torch.rand(batch, 1, device=device)
    noise = torch.randn_like(audio)
    noise = torch.where(torch.rand(batch, 1, device=device) < 0.5, noise, F.avg_pool1d(noise, 5, 1, 2) * 2)
    audio = audio + noise * audio.square().mean(1, keepdim=True).sqrt() * 10 ** (-snr_db / 20)
    mel = features(audio, 1 + settings.max_warp * (2 * torch.rand(batch, device=device) - 1))
    keep = torch.rand(batch, 1, mel.shape[2], device=device) > 0.03
    return mel * keep + _colour(mel, settings.max_colour), labels


def _colour(mel: Tensor, most: float) -> Tensor:
    """A smooth curve over the bands, its own for each row."""
    points = most * (2 * torch.rand(len(mel), 1, 6, device=mel.device) - 1)
    return F.interpolate(points, mel.shape[1], mode="linear", align_corners=True).transpose(1, 2)


def train(speech: Speech, seconds: float, settings: ListenerSettings) -> Listener:
    """Trains for ``seconds`` while ``speech`` still grows."""
    model = Listener(settings).to(speech.device)
    average = Average(model, 0.999)
    optimizer = torch.optim.AdamW(model.parameters(), settings.learning_rate, weight_decay=0.01)
    grow, report = Every(5.0), Every(20.0)
    for step, progress in enumerate(until(seconds)):
        if grow():
            speech.grow()
        optimizer.param_groups[0]["lr"] = settings.learning_rate * warm_cosine(progress, step, settings.warmup_steps)
        mel, labels = disguise(*speech.crops(settings.batch, settings.crop_labels), settings)
        logits = model(mel)
        loss = F.cross_entropy(logits, labels, label_smoothing=0.05)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        average.follow(model, step)
        if report():
            right = (logits.argmax(1) == labels).float().mean().item()
            say("listener", step=step, loss=round(loss.item(), 3), right=round(right, 3), hours=round(speech.hours, 1))
    return average.module


def wait_for_speech(folder: Path, settings: ListenerSettings, device: str) -> Speech:
    while not list(folder.glob("*.index")):
        next(iter(until(1.0)))
    speech = Speech(folder, settings.max_audio_h, device)
    while speech.hours < settings.least_audio_h:
        speech.grow()
    return speech


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description="Train the second listener.")
    parser.add_argument("weights", type=Path)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--hours", type=float, default=ListenerSettings.max_audio_h, help="most speech to keep in memory"
    )
    parser.add_argument("--batch", type=int, default=ListenerSettings.batch)
    parser.add_argument("--prose", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(arguments)
    settings = ListenerSettings(batch=options.batch, max_audio_h=options.hours)
    with TemporaryDirectory() as folder:
        text = TextSettings(seed=77, prose=options.prose)
        with SynthesisPool(SynthesisSettings(Path(folder), options.workers, 10**9, VOICES, text=text)):
            model = train(wait_for_speech(Path(folder), settings, options.device), options.seconds, settings)
    save(model, options.weights)
    say("listener", rate_hz=LABEL_HZ / FRAME_LABELS, parameters=sum(v.numel() for v in model.parameters()))


if __name__ == "__main__":
    main(sys.argv[1:])
