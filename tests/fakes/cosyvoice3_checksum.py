"""CosyVoice3's own decode stage, small, behind the talker of its shape: the engine's laws are held with it, too."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch

from engine.config import EngineConfig
from engine.models.base import DecodeStage, Pcm
from engine.models.cosyvoice3.flow import Flow
from tests.engine.models.cosyvoice3.flow_fixtures import NOBODY, SMALL, ClearVocoder, fill, stage_of, whole
from tests.fakes.cosyvoice_checksum import NUM_TOKENS, POISON_TOKEN, CosyVoiceChecksumFamily


@cache
def flow() -> Flow:
    """One token of it makes what is not finite."""
    made = fill(Flow(dataclasses.replace(SMALL, vocab_size=NUM_TOKENS, ode_steps=2)))
    made.fuse()
    made.input_embedding.weight.data[POISON_TOKEN] = torch.nan
    return made


class CosyVoice3Family(CosyVoiceChecksumFamily):
    name = "cosyvoice3"
    chunk_frames = 12
    pcm_tolerance = 1e-4

    def make_stage(self, config: EngineConfig) -> DecodeStage:  # type: ignore[override]
        return stage_of(num_slots=config.max_running_requests, num_pages=30 * config.max_running_requests, flow=flow())

    def pcm(self, codes: Sequence[Sequence[int]]) -> Pcm:
        vocoder = ClearVocoder()
        vocoder.open(0)
        mel = whole([token for (token,) in codes], NOBODY, flow=flow())
        [pcm] = vocoder.push_each([0], [mel], [True])
        return np.asarray(pcm.numpy(), np.float32)
