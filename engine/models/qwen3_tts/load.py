"""A Qwen3-TTS folder as a ``Family``."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

from engine.config import EngineConfig
from engine.layers.cpu import pack_linears
from engine.layers.streaming import enable_matmul_conv
from engine.models.base import Codec, Family
from engine.models.qwen3_tts.codec_decoder import CodecDecoder
from engine.models.qwen3_tts.load_weights import load_codec, load_encoders
from engine.models.qwen3_tts.model import Qwen3TTS
from engine.models.qwen3_tts.pipelined import make_codec_program, make_frames, new_ring

# Packed convolutions stand beside the plain ones. A released codec of 450 MB, which no CPU decodes in real time anyhow,
# is held once.
MAX_TWICE_HELD_BYTES = 64 * 2**20


def load_family(
    folder: Path,
    config: EngineConfig,
    device: torch.device,
    dtype: torch.dtype,
    decode_device: torch.device | None = None,
) -> Family:
    """``decode_device``: of the codec alone, which is fp32 on a CPU."""
    model = Qwen3TTS.load(
        folder, dtype, device, guard_eos=config.ban_eos_until_text_end, max_voices=config.max_cached_voices
    )
    codec_dtype = dtype if decode_device is None or decode_device.type == "cuda" else torch.float32
    codec = load_codec(folder, model.config, codec_dtype, decode_device or device)
    if device.type == "cpu" and config.cpu_optimizations and not config.graphs:
        pack_linears(codec)
        if weight_bytes(codec) <= MAX_TWICE_HELD_BYTES:
            enable_matmul_conv(codec)
            codec.pack()
        pack_linears(model.talker)
        model.talker.code_predictor.build_lookup()
    encode_voice = None
    if config.voice_encoders and model.config.encoders is not None:
        encode_voice = load_encoders(folder, model.config.encoders, device)
    return build_family(model, codec)._replace(encode_voice=encode_voice)


def build_family(model: Qwen3TTS, codec: CodecDecoder) -> Family:
    parts = Codec(
        codec, codec.pre_conv.conv.weight.device, partial(new_ring, model), partial(make_codec_program, codec)
    )
    return Family(model, model.config.codec, partial(make_frames, model), codec=parts)


def weight_bytes(module: torch.nn.Module) -> int:
    return sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))
