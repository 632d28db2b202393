"""A released-layout folder into a talker and a codec decoder, ready to run."""

from __future__ import annotations

from pathlib import Path

import torch

from engine.layers.transformer import Rope
from engine.models.qwen3_tts.codec_decoder import CodecDecoder
from engine.models.qwen3_tts.config import Qwen3TTSConfig
from engine.models.qwen3_tts.talker import Talker
from engine.weights.loader import load_weights, uninitialized


def _restore_buffers(module: torch.nn.Module, device: torch.device) -> None:
    """Rope frequencies are derived and in no file."""
    for child in module.modules():
        if isinstance(child, Rope):
            child.reset(device)


def load_talker(folder: Path, config: Qwen3TTSConfig, dtype: torch.dtype, device: torch.device) -> Talker:
    with uninitialized():
        talker = Talker(config.talker)
    load_weights(talker, folder, "talker.", dtype, device)
    _restore_buffers(talker, device)
    return talker.eval().requires_grad_(False)


def load_codec(folder: Path, config: Qwen3TTSConfig, dtype: torch.dtype, device: torch.device) -> CodecDecoder:
    with uninitialized():
        codec = CodecDecoder(config.codec)
    load_weights(codec, folder / "speech_tokenizer", "decoder.", torch.float32, device)
    _restore_buffers(codec, device)
    codec.eval().requires_grad_(False).fuse()
    return codec.to(dtype)
