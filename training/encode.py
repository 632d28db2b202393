"""Speech to codes for the talker: each utterance at random offsets, so that the same words get many codes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from tokenizers import Tokenizer
from torch import Tensor

from training.codec import Codec
from training.settings import LABELS_PER_FRAME
from training.speech import Speech


def offset_pieces(speech: Speech, start: Tensor, count: Tensor, offset: Tensor, frames: int) -> tuple[Tensor, Tensor]:
    """Utterances of ``count`` labels from ``start``, each after ``offset`` labels of silence; all are [B].

    Returns 24 kHz audio [B, frames * 1920] and labels [B, frames * 8]; silence fills the rest.
    """
    index = torch.arange(frames * LABELS_PER_FRAME, device=speech.device)[None] - offset[:, None]
    inside = (index >= 0) & (index < count[:, None])
    at = start[:, None] + index.clamp_min(0).minimum(count[:, None] - 1)
    samples = at[..., None] * speech.label_samples + torch.arange(speech.label_samples, device=speech.device)
    audio = (speech.audio[samples].float() / 32_768 * inside[..., None]).flatten(1)
    return speech.at_24_khz(audio), torch.where(inside, speech.phones[at], 0)


class EncodedSpeech:
    """Flat codes [F, K] and labels [F, 8]; per item its first frame, its length, its text and its voice."""

    def __init__(self, speech: Speech, codec: Codec, max_offset_labels: int) -> None:
        self._speech, self._codec = speech, codec.eval()
        self._max_offset = max_offset_labels
        device = speech.device
        self.codes = torch.zeros(0, self._num_books(codec), dtype=torch.int16, device=device)
        self.labels = torch.zeros(0, LABELS_PER_FRAME, dtype=torch.uint8, device=device)
        self.text = torch.zeros(0, dtype=torch.int16, device=device)
        # [N, 5] on the CPU: first frame, frames, first text id, text ids, voice.
        self.items = torch.zeros(0, 5, dtype=torch.long)

    @staticmethod
    def _num_books(codec: Codec) -> int:
        return codec.decoder.config.num_quantizers

    def add(self, first: int, last: int, tokenizer: Tokenizer, frames_per_batch: int = 20_000) -> None:
        """Encodes utterances ``first`` to ``last`` once more, each at an offset of its own."""
        text_places = self._add_texts(self._speech.texts[first:last], tokenizer)
        counts = torch.tensor(self._speech.label_counts[first:last])
        offsets = torch.randint(self._max_offset, counts.shape)
        num_frames = -(-(counts + offsets) // LABELS_PER_FRAME)
        starts = torch.tensor(self._speech.label_starts[first:last])
        order = num_frames.argsort()
        found = [
            self._encode(starts[chosen], counts[chosen], offsets[chosen], num_frames[chosen])
            for chosen in _batches(order, num_frames, frames_per_batch)
        ]
        begin = len(self.codes) + num_frames[order].cumsum(0) - num_frames[order]
        codes, labels = zip(*found, strict=True)
        self.codes, self.labels = torch.cat((self.codes, *codes)), torch.cat((self.labels, *labels))
        voices = torch.tensor(self._speech.voices[first:last])
        columns = (begin, num_frames[order], *text_places[order].unbind(1), voices[order])
        self.items = torch.cat((self.items, torch.stack(columns, 1)))

    def _add_texts(self, texts: list[str], tokenizer: Tokenizer) -> Tensor:
        """[N, 2]: where each text's ids begin, and how many they are."""
        new = [found.ids for found in tokenizer.encode_batch(texts, add_special_tokens=False)]
        lengths = torch.tensor([len(ids) for ids in new], dtype=torch.long)
        begin = len(self.text) + lengths.cumsum(0) - lengths
        flat = torch.tensor([i for ids in new for i in ids], dtype=torch.int16)
        self.text = torch.cat((self.text, flat.to(self.text.device)))
        return torch.stack((begin, lengths), 1)

    @torch.no_grad()
    def _encode(self, start: Tensor, count: Tensor, offset: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        device = self._speech.device
        longest = int(num_frames.max())
        start, count, offset = (part.to(device) for part in (start, count, offset))
        audio, labels = offset_pieces(self._speech, start, count, offset, longest)
        with torch.autocast(audio.device.type, dtype=torch.bfloat16, enabled=audio.device.type == "cuda"):
            codes = self._codec.encode(audio).transpose(1, 2)
        real = torch.arange(longest, device=device)[None] < num_frames.to(device)[:, None]
        return codes[real].to(torch.int16), labels.unflatten(1, (longest, LABELS_PER_FRAME))[real]


def _batches(order: Tensor, num_frames: Tensor, frames_per_batch: int) -> Iterator[Tensor]:
    """Runs of ``order`` (ascending lengths) whose padded size stays within ``frames_per_batch``, one item at least."""
    lengths, first = num_frames[order].tolist(), 0
    while first < len(lengths):
        last = first + 1
        while last < len(lengths) and (last + 1 - first) * lengths[last] <= frames_per_batch:
            last += 1
        yield order[first:last]
        first = last
