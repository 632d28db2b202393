"""A small flow with weights that matter, prompts for it, and a vocoder through which its mel can be seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal
from unittest.mock import patch

import torch
from torch import Tensor

from engine.models.base import Pcm, VoiceReference
from engine.models.cosyvoice3 import decode_stage
from engine.models.cosyvoice3.config import DitConfig, FlowConfig, HiftConfig
from engine.models.cosyvoice3.decode_stage import CosyDecodeStage
from engine.models.cosyvoice3.flow import Flow
from engine.models.cosyvoice3.hift import WITHHELD_FRAMES, Hift
from engine.models.cosyvoice3.settings import CosyVoice3Settings, FlowSettings
from tests.fakes.cosyvoice3_reference import mel_of_tokens

BINS = 4
BLOCK_TOKENS, AHEAD = 5, 3
SMALL = FlowConfig(
    input_size=BINS,
    vocab_size=30,
    spk_embed_size=6,
    pre_lookahead_hidden=12,
    dit=DitConfig(
        dim=16, depth=2, heads=2, head_dim=8, mel_bins=BINS, block_frames=10, conv_pos_kernel=7, conv_pos_groups=4
    ),
)
# Of mel that goes from -5 to 5: sums that are cut elsewhere round elsewhere, and guidance makes more of it.
SAME = 2e-4
MEL_SAMPLES = 480


def fill(flow: Flow, seed: int = 0) -> Flow:
    generator = torch.Generator().manual_seed(seed)
    for values in flow.parameters():
        scale = values[0].numel() ** -0.5 if values.dim() > 1 else 0.1
        values.data = torch.randn(values.shape, generator=generator) * scale
    flow.requires_grad_(False)
    return flow


@cache
def small_flow() -> Flow:
    flow = fill(Flow(SMALL))
    flow.fuse()
    return flow


@dataclass(frozen=True, eq=False)
class Voice:
    tokens: Tensor
    mel: Tensor
    embedding: Tensor

    def reference(self, key: str) -> VoiceReference:
        return VoiceReference(key, (), self)


@cache
def voice(num_tokens: int, seed: int = 0) -> Voice:
    generator = torch.Generator().manual_seed(100 + seed)
    tokens = torch.randint(0, SMALL.vocab_size, (num_tokens,), generator=generator)
    mel = torch.randn(2 * num_tokens, BINS, generator=generator)
    return Voice(tokens, mel, torch.randn(SMALL.spk_embed_size, generator=generator))


NOBODY = Voice(torch.zeros(0, dtype=torch.int64), torch.zeros(0, BINS), torch.zeros(SMALL.spk_embed_size))


def whole(
    tokens: Sequence[int], speaker: Voice, mask: Tensor | Literal["chunk", "full"] = "chunk", flow: Flow | None = None
) -> Tensor:
    """The mel of a whole utterance in one pass: the slow reference."""
    ids = torch.tensor(list(tokens), dtype=torch.int64)
    return mel_of_tokens(flow or small_flow(), ids, speaker.tokens, speaker.mel, speaker.embedding, True, mask)


class ClearVocoder:
    """``HiftBatch`` of a vocoder that says each frame as its bins, zeros behind them."""

    def __init__(self, bins: int = BINS) -> None:
        self.bins = bins
        self.heard: dict[int, list[Tensor]] = {}
        self.over: set[int] = set()
        self.num_out: dict[int, int] = {}

    def open(self, slot: int) -> None:
        assert slot not in self.heard
        self.heard[slot], self.num_out[slot] = [], 0

    def close(self, slot: int) -> None:
        del self.heard[slot], self.num_out[slot]
        self.over.discard(slot)

    def push_each(self, slots: Sequence[int], mels: Sequence[Tensor], final: Sequence[bool]) -> list[Tensor]:
        assert len(set(slots)) == len(slots)
        return [self.say(*one) for one in zip(slots, mels, final, strict=True)]

    def say(self, slot: int, mel: Tensor, is_last: bool) -> Tensor:
        assert slot not in self.over, "it spoke its last"
        self.heard[slot].append(mel)
        frames = torch.cat(self.heard[slot])
        end = len(frames) if is_last else max(0, len(frames) - WITHHELD_FRAMES)
        start, self.num_out[slot] = self.num_out[slot], max(end, self.num_out[slot])
        if is_last:
            self.over.add(slot)
        return torch.nn.functional.pad(frames[start : max(end, start)], (0, MEL_SAMPLES - self.bins)).flatten()


@cache
def tiny_hift() -> Hift:
    return Hift(HiftConfig(base_channels=8, f0_channels=4))


def stage_of(
    num_slots: int = 3, num_pages: int = 40, max_cached_voices: int = 2, flow: Flow | None = None, **settings: object
) -> CosyDecodeStage:
    """A stage over so many pages, whose PCM is its mel."""
    chosen = CosyVoice3Settings(flow=FlowSettings(**settings))  # type: ignore[arg-type]
    with patch.object(decode_stage, "num_pages", return_value=num_pages):
        cpu = torch.device("cpu")
        stage = CosyDecodeStage(flow or small_flow(), tiny_hift(), num_slots, chosen, cpu, max_cached_voices)
    stage.vocoder = ClearVocoder()  # type: ignore[assignment]
    return stage


def mel_of(pcm: Pcm) -> Tensor:
    """What ``ClearVocoder`` said."""
    return torch.from_numpy(pcm.copy()).view(-1, MEL_SAMPLES)[:, :BINS]
