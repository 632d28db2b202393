"""The slow, obvious way to speak: every step runs the whole sequence again. Used to listen while training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.layers.transformer import CausalContext
from engine.models.qwen3_tts.config import Qwen3TTSConfig
from engine.models.qwen3_tts.prompt import NO_TOKEN, PromptBuilder, PromptPosition
from engine.models.qwen3_tts.talker import Talker
from training.settings import Sampling


@dataclass(frozen=True)
class SpokenLine:
    """One text to speak: its ids, a speaker's name, and whether all text goes into the prompt."""

    ids: Sequence[int]
    speaker: str
    full: bool
    language: str = "english"


def draw(logits: Tensor, temperature: float, top_k: int) -> Tensor:
    """[N, V] -> ids [N]; temperature 0 takes the best."""
    if temperature == 0:
        return logits.argmax(1)
    lowest = logits.topk(min(top_k, logits.shape[1]), 1).values[:, -1:]
    return (logits.masked_fill(logits < lowest, -torch.inf) / temperature).softmax(1).multinomial(1)[:, 0]


class Speaker:
    """Speaks a batch of lines with a talker in training's form."""

    def __init__(self, talker: Talker, config: Qwen3TTSConfig, prompts: PromptBuilder, sampling: Sampling) -> None:
        self._talker, self._config, self._prompts, self._sampling = talker, config, prompts, sampling
        self._device = talker.codec_head.weight.device

    def with_sampling(self, sampling: Sampling) -> Speaker:
        return Speaker(self._talker, self._config, self._prompts, sampling)

    @torch.no_grad()
    def speak(self, lines: Sequence[SpokenLine], max_frames: int) -> list[Tensor]:
        """Codes [T, K] of each line; ``max_frames`` long where the model did not end by itself."""
        prompts = [self._embed(self._prompt(line)) for line in lines]
        queues = [self._queue(line) for line in lines]
        x = prompts[0].new_zeros(len(lines), max(map(len, prompts)) + max_frames, prompts[0].shape[1])
        for row, prompt in zip(x, prompts, strict=True):
            row[: len(prompt)] = prompt
        length = torch.tensor([len(prompt) for prompt in prompts], device=self._device)
        frames, num_frames = [], torch.full_like(length, max_frames)
        for step in range(max_frames):
            codes, ended = self._frame(x, length, step)
            num_frames = torch.where(ended & (num_frames == max_frames), step, num_frames)
            frames.append(codes)
            text = torch.tensor([queue[min(step, len(queue) - 1)] for queue in queues], device=self._device)
            x[torch.arange(len(x)), length] = self._talker.embed_frame(codes) + self._talker.embed_text(text)
            length += 1
            if bool((num_frames < max_frames).all()):
                break
        stacked = torch.stack(frames, 1)
        return [row[:n].cpu() for row, n in zip(stacked, num_frames.tolist(), strict=True)]

    def _prompt(self, line: SpokenLine) -> list[PromptPosition]:
        tail = self._prompts.full_tail(line.ids) if line.full else self._prompts.streaming_tail(line.ids[0])
        return self._prompts.prefix(line.speaker, line.language) + tail

    def _queue(self, line: SpokenLine) -> list[int]:
        text = self._config.text
        return [text.tts_pad] if line.full else [*line.ids[1:], text.tts_eos, text.tts_pad]

    def _embed(self, rows: list[PromptPosition]) -> Tensor:
        text, codec = torch.tensor([(row.text, row.codec) for row in rows], device=self._device).unbind(1)
        return (
            self._talker.embed_text(text) + self._talker.embed_codec(codec.clamp_min(0)) * (codec != NO_TOKEN)[:, None]
        )

    def _frame(self, x: Tensor, length: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """(codes [B, K], whether the row's speech ended) after ``length`` rows of ``x``."""
        widest = int(length.max())
        positions = torch.arange(widest, device=self._device)[None]
        hidden = self._talker(x[:, :widest], positions, CausalContext())[torch.arange(len(x)), length - 1]
        logits, eos = self._talker.codec_head(hidden).float(), self._config.talker.control.eos
        num_codes, how = self._config.talker.num_codes, self._sampling
        logits = torch.cat((logits[:, :num_codes], logits[:, eos : eos + 1] if step >= 2 else logits[:, :0]), 1)
        first = draw(logits, how.temperature, how.top_k)
        ended = first == num_codes
        first = first.clamp_max(num_codes - 1)
        rest = self._talker.code_predictor.generate(
            hidden,
            self._talker.embed_codec(first),
            lambda _, logits: draw(logits.float(), how.predictor_temperature, how.predictor_top_k),
        )
        return torch.cat((first[:, None], rest), 1), ended
