"""Talker inputs and targets for whole batches at once: the engine's prompts, as index arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.models.qwen3_tts.config import Qwen3TTSConfig
from engine.models.qwen3_tts.prompt import NO_TOKEN, PromptBuilder

END, IGNORED = -1, -2
LANGUAGES = ("auto", "english")


@dataclass
class Prefixes:
    """The engine's prefix rows for every (voice, language): ids [V, 2, P] padded with NONE, lengths [V, 2]."""

    text: Tensor
    codec: Tensor
    length: Tensor

    @classmethod
    def of(cls, prompts: PromptBuilder, voices: tuple[str, ...], device: str) -> Prefixes:
        rows = [[prompts.prefix(voice, language) for language in LANGUAGES] for voice in voices]
        longest = max(len(prefix) for by_language in rows for prefix in by_language)

        def table(side: str) -> Tensor:
            padded = [
                [
                    [getattr(row, side) for row in prefix] + [NO_TOKEN] * (longest - len(prefix))
                    for prefix in by_language
                ]
                for by_language in rows
            ]
            return torch.tensor(padded, device=device)

        length = torch.tensor([[len(prefix) for prefix in by_language] for by_language in rows], device=device)
        return cls(table("text"), table("codec"), length)


@dataclass
class Rows:
    """All [B, L]. ``frame`` and ``target`` are places in the flat codes; NONE means that side is absent."""

    text: Tensor
    codec: Tensor
    frame: Tensor
    # What the row's output predicts: a frame, END or IGNORED.
    target: Tensor


def build_rows(
    items: Tensor, full: Tensor, language: Tensor, texts: Tensor, prefixes: Prefixes, config: Qwen3TTSConfig, width: int
) -> Rows:
    """items [B, 5] of EncodedSpeech; full [B]: all text in the prompt, else one id a frame; language [B]: LANGUAGES.

    Row p of an utterance of n text ids and T frames: the prefix, then (streaming) text i beside frame i - 1, or
    (full) all text beside pad rows and then the frames beside the text's padding (docs/design/models.md).
    """
    first_frame, num_frames, first_text, num_text, voice = (column[:, None] for column in items.unbind(1))
    control, ids = config.talker.control, config.text
    prefix_length = prefixes.length[voice[:, 0], language][:, None]
    place = torch.arange(width, device=items.device)[None]
    i = place - prefix_length
    in_prefix = i < 0
    j = i - torch.where(full[:, None], num_text + 1, 0)
    inside = place < prefix_length + (i - j) + num_frames + 1

    spoken = texts[(first_text + i.clamp_min(0)).clamp_max(len(texts) - 1)].long()
    text = torch.where(i < num_text, spoken, torch.where(i == num_text, ids.tts_eos, ids.tts_pad))
    codec = torch.where(j < 0, control.pad, torch.where(j == 0, control.bos, NO_TOKEN))
    within = place.clamp_max(prefixes.text.shape[2] - 1).expand_as(i)
    text = torch.where(in_prefix, prefixes.text[voice[:, 0], language].gather(1, within), text)
    codec = torch.where(in_prefix, prefixes.codec[voice[:, 0], language].gather(1, within), codec)

    frame = torch.where(inside & (j > 0), first_frame + j - 1, NO_TOKEN)
    target = torch.where(j < num_frames, first_frame + j, END)
    target = torch.where(inside & (j >= 0), target, IGNORED)
    return Rows(torch.where(inside, text, ids.tts_pad), codec, frame, target)


def num_positions(items: Tensor, full: Tensor, language: Tensor, prefixes: Prefixes) -> Tensor:
    """Rows that each item takes, [B]."""
    prefix = prefixes.length[items[:, 4], language]
    return prefix + torch.where(full, items[:, 3] + 1, 0) + items[:, 1] + 1
