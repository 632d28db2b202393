"""The synthetic speech in the device's memory: one flat buffer that grows while synthesis goes on."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from training.settings import SAMPLE_RATE, SOURCE_RATE
from training.shards import SpeechStore, frame_phonemes
from training.spectral import to_24_khz

LABEL_HZ = 100
# At flite's rate.
LABEL_SAMPLES = SOURCE_RATE // LABEL_HZ


class Speech:
    """Audio of one rate back to back, each utterance padded to whole labels; a phoneme and a voice per 10 ms."""

    def __init__(self, folder: Path, max_audio_h: float, device: str, rate_hz: int = SOURCE_RATE) -> None:
        self._store = SpeechStore(folder)
        self.rate_hz = rate_hz
        self.label_samples = rate_hz // LABEL_HZ
        capacity = round(max_audio_h * 3600 * LABEL_HZ) * self.label_samples
        self.device = device
        self.audio = torch.zeros(capacity, dtype=torch.int16, device=device)
        self.phones = torch.zeros(capacity // self.label_samples, dtype=torch.uint8, device=device)
        self.label_starts: list[int] = []
        self.label_counts: list[int] = []
        self.voices: list[int] = []
        self.texts: list[str] = []
        self._num_labels = 0
        self.grow()

    @property
    def hours(self) -> float:
        return self._num_labels / LABEL_HZ / 3600

    def grow(self) -> int:
        """Takes in utterances that are new, up to the buffer's end; returns how many came."""
        first = len(self.texts)
        last = self._store.refresh()
        counts = -(-self._store.records["num_samples"][first:last].astype(np.int64) // self.label_samples)
        room = len(self.phones) - self._num_labels
        last = first + int(np.searchsorted(counts.cumsum(), room, side="right"))
        counts = counts[: last - first]
        audio = np.zeros((int(counts.sum()), self.label_samples), np.int16)
        phones = np.zeros(len(audio), np.uint8)
        at = 0
        for position, count in zip(range(first, last), counts.tolist(), strict=True):
            pcm = self._store.pcm(position)
            audio[at : at + count].reshape(-1)[: len(pcm)] = pcm
            phones[at : at + count] = frame_phonemes(self._store.labels(position), 0, count, self.label_samples)
            self.label_starts.append(self._num_labels + at)
            self.texts.append(self._store.text(position))
            at += count
        voices = self._store.records["voice"][first:last]
        self._append(audio, phones)
        self.label_counts += counts.tolist()
        self.voices += voices.tolist()
        return last - first

    def _append(self, audio: np.ndarray, phones: np.ndarray) -> None:
        begin, end = self._num_labels, self._num_labels + len(phones)
        samples = slice(begin * self.label_samples, end * self.label_samples)
        self.audio[samples] = torch.from_numpy(audio).reshape(-1).to(self.device)
        self.phones[begin:end] = torch.from_numpy(phones).to(self.device)
        self._num_labels = end

    def crops(self, batch: int, num_labels: int) -> tuple[Tensor, Tensor]:
        """Random pieces: audio float [batch, num_labels * label_samples], phonemes long [batch, num_labels]."""
        return self.pieces(self.starts(batch, num_labels), num_labels)

    def starts(self, batch: int, num_labels: int) -> Tensor:
        """Labels [batch, 1] at which random pieces begin."""
        return torch.randint(self._num_labels - num_labels, (batch, 1), device=self.device)

    def pieces(self, start_labels: Tensor, num_labels: int) -> tuple[Tensor, Tensor]:
        """Pieces from ``start_labels`` [batch, 1] (in 10 ms) on."""
        labels = start_labels + torch.arange(num_labels, device=self.device)
        samples = start_labels * self.label_samples + torch.arange(num_labels * self.label_samples, device=self.device)
        return self.audio[samples].float() / 32_768, self.phones[labels].long()

    def at_24_khz(self, audio: Tensor) -> Tensor:
        """Resample pieces [batch, n] to the codec's rate."""
        return audio if self.rate_hz == SAMPLE_RATE else to_24_khz(audio)


def wait_for_speech(folder: Path, max_audio_h: float, min_h: float, device: str, rate_hz: int) -> Speech:
    speech = Speech(folder, max_audio_h, device, rate_hz)
    while speech.hours < min_h:
        time.sleep(0.5)
        speech.grow()
    return speech
