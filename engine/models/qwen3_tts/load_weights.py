"""A released-layout folder into a talker and a codec decoder, ready to run."""

from __future__ import annotations

from pathlib import Path

import torch

from engine.layers.transformer import Rope
from engine.models.qwen3_tts.codec_decoder import CodecDecoder, CodecFront
from engine.models.qwen3_tts.codec_encoder import CodecEncoder
from engine.models.qwen3_tts.config import CodecDecoderConfig, Qwen3TTSConfig
from engine.models.qwen3_tts.encoder_config import EncoderConfigs
from engine.models.qwen3_tts.source_filter import SourceFilterDecoder
from engine.models.qwen3_tts.speaker_encoder import SpeakerEncoder
from engine.models.qwen3_tts.talker import Talker
from engine.models.qwen3_tts.voice import QwenVoiceEncoder
from engine.weights.loader import config_errors_of, load_weights, uninitialized

# Of the encoder's books the file holds more than are used, and what only training and decoding need.
UNUSED_IN_ENCODER = "quantizer."


def create_codec(config: CodecDecoderConfig) -> CodecFront:
    return CodecDecoder(config) if config.source_filter is None else SourceFilterDecoder(config)


def _restore_buffers(module: torch.nn.Module, device: torch.device) -> None:
    """Rope frequencies are derived and in no file."""
    for child in module.modules():
        if isinstance(child, Rope):
            child.reset(device)


def load_talker(folder: Path, config: Qwen3TTSConfig, dtype: torch.dtype, device: torch.device) -> Talker:
    with config_errors_of(folder), uninitialized():
        talker = Talker(config.talker)
    load_weights(talker, folder, "talker.", dtype, device)
    _restore_buffers(talker, device)
    return talker.eval().requires_grad_(False)


def load_encoders(folder: Path, config: EncoderConfigs, device: torch.device) -> QwenVoiceEncoder:
    """In fp32, as the file of the codec is."""
    with config_errors_of(folder), uninitialized():
        speaker, codec = SpeakerEncoder(config.speaker), CodecEncoder(config.codec)
    load_weights(speaker, folder, "speaker_encoder.", torch.float32, device)
    load_weights(codec, folder / "speech_tokenizer", "encoder.", torch.float32, device, UNUSED_IN_ENCODER)
    _restore_buffers(codec, device)
    for module in (speaker, codec):
        module.eval().requires_grad_(False)
    return QwenVoiceEncoder(speaker, codec, device)


def load_codec(folder: Path, config: Qwen3TTSConfig, dtype: torch.dtype, device: torch.device) -> CodecFront:
    with config_errors_of(folder), uninitialized():
        codec = create_codec(config.codec)
    load_weights(codec, folder / "speech_tokenizer", "decoder.", torch.float32, device)
    _restore_buffers(codec, device)
    codec.eval().requires_grad_(False).fuse()
    return codec.to(device, torch.float32 if isinstance(codec, SourceFilterDecoder) else dtype)
