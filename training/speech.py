"""The synthetic speech in the device's memory: one flat buffer that grows while synthesis goes on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from training.settings import SOURCE_RATE
from training.shards import SpeechStore, frame_phonemes

LABEL_SAMPLES = 160
LABEL_HZ = SOURCE_RATE / LABEL_SAMPLES


class Speech:
    """16 kHz audio back to back, each utterance padded to whole labels; a phoneme and a voice per label of 10 ms."""

    def __init__(self, folder: Path, max_audio_h: float, device: str) -> None:
        self._store = SpeechStore(folder)
        capacity = round(max_audio_h * 3600 * LABEL_HZ) * LABEL_SAMPLES
        self.device = device
        self.audio = torch.zeros(capacity, dtype=torch.int16, device=device)
        self.phones = torch.zeros(capacity // LABEL_SAMPLES, dtype=torch.uint8, device=device)
        self.speakers = torch.zeros_like(self.phones)
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
        counts = -(-self._store.records["num_samples"][first:last].astype(np.int64) // LABEL_SAMPLES)
        room = len(self.phones) - self._num_labels
        last = first + int(np.searchsorted(counts.cumsum(), room, side="right"))
        counts = counts[: last - first]
        audio = np.zeros((int(counts.sum()), LABEL_SAMPLES), np.int16)
        phones = np.zeros(len(audio), np.uint8)
        at = 0
        for position, count in zip(range(first, last), counts.tolist(), strict=True):
            pcm = self._store.pcm(position)
            audio[at : at + count].reshape(-1)[: len(pcm)] = pcm
            phones[at : at + count] = frame_phonemes(self._store.labels(position), 0, count, LABEL_HZ)
            self.label_starts.append(self._num_labels + at)
            self.texts.append(self._store.text(position))
            at += count
        voices = self._store.records["voice"][first:last]
        self._append(audio, phones, voices.repeat(counts))
        self.label_counts += counts.tolist()
        self.voices += voices.tolist()
        return last - first

    def _append(self, audio: np.ndarray, phones: np.ndarray, speakers: np.ndarray) -> None:
        begin, end = self._num_labels, self._num_labels + len(phones)
        self.audio[begin * LABEL_SAMPLES : end * LABEL_SAMPLES] = torch.from_numpy(audio).reshape(-1).to(self.device)
        self.phones[begin:end] = torch.from_numpy(phones).to(self.device)
        self.speakers[begin:end] = torch.from_numpy(speakers).to(self.device)
        self._num_labels = end

    def crops(self, batch: int, num_labels: int) -> tuple[Tensor, Tensor]:
        """Random pieces: audio float [batch, num_labels * 160] in [-1, 1), phonemes long [batch, num_labels]."""
        return self.pieces(self.starts(batch, num_labels), num_labels)

    def starts(self, batch: int, num_labels: int) -> Tensor:
        """Labels [batch, 1] at which random pieces begin."""
        return torch.randint(self._num_labels - num_labels, (batch, 1), device=self.device)

    def pieces(self, start_labels: Tensor, num_labels: int) -> tuple[Tensor, Tensor]:
        """Pieces from ``start_labels`` [batch, 1] (in 10 ms) on."""
        labels = start_labels + torch.arange(num_labels, device=self.device)
        samples = start_labels * LABEL_SAMPLES + torch.arange(num_labels * LABEL_SAMPLES, device=self.device)
        return self.audio[samples].float() / 32_768, self.phones[labels].long()
