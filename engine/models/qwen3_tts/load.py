"""A Qwen3-TTS folder as modules and as a ``Family``, or checked without reading a weight."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from engine.api import CheckpointReport
from engine.config import EngineConfig
from engine.layers.cpu import pack_linears
from engine.layers.transformer import reset_ropes
from engine.models.base import Codec, Family, FrameContext
from engine.models.qwen3_tts.codec_decoder import CodecDecoder, CodecFront
from engine.models.qwen3_tts.codec_encoder import CodecEncoder
from engine.models.qwen3_tts.codec_program import CodecProgram, ModuleProgram
from engine.models.qwen3_tts.config import CodecDecoderConfig, Qwen3TTSConfig, read_config
from engine.models.qwen3_tts.cpu_codec import CpuCodecDecoder
from engine.models.qwen3_tts.encoder_config import EncoderConfigs
from engine.models.qwen3_tts.frame_program import RING_FRAMES, FrameProgram
from engine.models.qwen3_tts.model import Qwen3TTS
from engine.models.qwen3_tts.source_filter import SourceFilterDecoder
from engine.models.qwen3_tts.speaker_encoder import SpeakerEncoder
from engine.models.qwen3_tts.talker import Talker
from engine.models.qwen3_tts.voice import QwenVoiceEncoder
from engine.ops.reference_ops import select_ops
from engine.text.tokenizer import TextTokenizer
from engine.weights.loader import check_weights, config_errors_of, load_weights, uninitialized
from engine.weights.quantize import Quantizer, quantize, quantize_and_retain, quantize_int4, quantize_linears

# Of the encoder's books the file holds more than are used, and what only training and decoding need.
UNUSED_IN_ENCODER = "quantizer."


class CheckpointPart(NamedTuple):
    name: str
    module: nn.Module
    subfolder: str
    prefix: str
    ignored: str | None = None


def inspect(folder: Path) -> CheckpointReport:
    """Inspect a folder. Raises ``CheckpointError`` naming file, key or tensor."""
    config = read_config(folder)
    TextTokenizer.from_folder(folder)
    with config_errors_of(folder):
        found = parts(config)
    megabytes = {}
    for part in found:
        num_bytes = check_weights(part.module, folder / part.subfolder, part.prefix, part.ignored)
        megabytes[part.name] = round(num_bytes / 1e6, 1)
    talker = config.talker
    languages = tuple(name for name in talker.languages if "dialect" not in name)
    model = f"qwen3-tts {config.size} {config.task}"
    return CheckpointReport(model, config.task, tuple(talker.speakers), languages, config.takes_instruct, megabytes)


def parts(config: Qwen3TTSConfig) -> list[CheckpointPart]:
    """Shapes alone: no memory stands behind these modules."""
    with torch.device("meta"):
        found = [
            CheckpointPart("talker", Talker(config.talker), "", "talker."),
            CheckpointPart("codec decoder", create_codec(config.codec), "speech_tokenizer", "decoder."),
        ]
        if config.encoders is not None:
            speaker, codec = SpeakerEncoder(config.encoders.speaker), CodecEncoder(config.encoders.codec)
            found += [
                CheckpointPart("speaker encoder", speaker, "", "speaker_encoder."),
                CheckpointPart("codec encoder", codec, "speech_tokenizer", "encoder.", UNUSED_IN_ENCODER),
            ]
    return found


def create_codec(config: CodecDecoderConfig) -> CodecFront:
    return CodecDecoder(config) if config.source_filter is None else SourceFilterDecoder(config)


def load_talker(folder: Path, config: Qwen3TTSConfig, dtype: torch.dtype, device: torch.device) -> Talker:
    with config_errors_of(folder), uninitialized():
        talker = Talker(config.talker)
    load_weights(talker, folder, "talker.", dtype, device)
    reset_ropes(talker, device)
    return talker.eval().requires_grad_(False)


def load_encoders(folder: Path, config: EncoderConfigs, device: torch.device) -> QwenVoiceEncoder:
    """In fp32, as the file of the codec is."""
    with config_errors_of(folder), uninitialized():
        speaker, codec = SpeakerEncoder(config.speaker), CodecEncoder(config.codec)
    load_weights(speaker, folder, "speaker_encoder.", torch.float32, device)
    load_weights(codec, folder / "speech_tokenizer", "encoder.", torch.float32, device, UNUSED_IN_ENCODER)
    reset_ropes(codec, device)
    for module in (speaker, codec):
        module.eval().requires_grad_(False)
    return QwenVoiceEncoder(speaker, codec, device)


def load_codec(folder: Path, config: Qwen3TTSConfig, dtype: torch.dtype, device: torch.device) -> CodecFront:
    with config_errors_of(folder), uninitialized():
        codec = create_codec(config.codec)
    load_weights(codec, folder / "speech_tokenizer", "decoder.", torch.float32, device)
    reset_ropes(codec, device)
    codec.eval().requires_grad_(False).fuse()
    return codec.to(device, torch.float32 if isinstance(codec, SourceFilterDecoder) else dtype)


def load_model(
    folder: Path, dtype: torch.dtype, device: torch.device, precision: str = "bf16", **settings: Any
) -> Qwen3TTS:
    """The talker stage. Raises ``CheckpointError`` naming file, key or tensor.

    Layers to be quantized go to the device one by one, so that it need not hold their plain weights.
    """
    config = read_config(folder)
    tokenizer = TextTokenizer.from_folder(folder)
    if precision == "bf16":
        talker = load_talker(folder, config, dtype, device)
    else:
        talker = load_talker(folder, config, dtype, torch.device("cpu"))
        quantize_talker(talker, precision, device)
        talker.to(device)
        reset_ropes(talker, device)
    talker.fuse()
    return Qwen3TTS(config, talker, tokenizer, **settings)


def new_ring(model: Qwen3TTS, config: EngineConfig, device: torch.device) -> Tensor:
    sizes = config.max_running_requests + 2, RING_FRAMES, model.config.talker.num_code_groups
    return torch.zeros(sizes, dtype=torch.int64, device=device)


def make_codec_program(codec: CodecFront, config: EngineConfig, ring: Tensor) -> CodecProgram | ModuleProgram:
    slots = config.max_running_requests
    if not isinstance(codec, CodecDecoder):
        return ModuleProgram(codec, ring, slots, slots)
    num_reference = math.ceil(config.max_reference_s * codec.config.sample_rate / codec.config.frame_samples)
    ops = select_ops(config, codec.pre_conv.conv.weight.device)
    return CodecProgram(codec, ops, ring, slots, slots, config.max_frames + num_reference)


def make_frames(model: Qwen3TTS, context: FrameContext) -> FrameProgram:
    kv, config, ring = context
    assert ring is not None
    width = min(config.max_graph_positions, model.max_positions)
    return FrameProgram(
        model,
        kv,
        select_ops(config, kv.data.device),
        ring,
        num_slots=config.max_running_requests,
        max_rows=max(config.max_batch_size, config.fixed_batch_rows or 0),
        max_tokens=config.max_prefill_positions,
        max_blocks=-(-width // config.block_size),
    )


def quantize_talker(talker: Talker, precision: str, device: torch.device) -> None:
    """Quantize the products of the layers of a talker and its code predictor on ``device``; heads and tables stay.

    In fp8 the predictor's products gain for one or two rows, and for up to eight in one launch. Calls of more rows read
    plain weights, 157 MB, which are retained.
    """
    makers: tuple[Quantizer, Quantizer]
    makers = (quantize_int4, quantize_int4) if precision == "int4" else (quantize, quantize_and_retain)
    for stack, make in zip((talker.model, talker.code_predictor.model), makers, strict=True):
        stack.fuse()
        quantize_linears(stack.layers, make, device)


# Convolutions for streams are held beside the plain ones. No CPU decodes a released codec of 450 MB in real time, so it
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
    model = load_model(
        folder, dtype, device, config.precision, guard_eos=config.ban_eos_until_text_end,
        max_voices=config.max_cached_voices,
    )  # fmt: skip
    codec_dtype = dtype if decode_device is None or decode_device.type == "cuda" else torch.float32
    codec = load_codec(folder, model.config, codec_dtype, decode_device or device)
    if device.type == "cpu" and config.cpu_optimizations and not config.graphs:
        pack_linears(codec)
        if isinstance(codec, CodecDecoder) and weight_bytes(codec) <= MAX_TWICE_HELD_BYTES:
            codec.streaming = CpuCodecDecoder(codec)
        pack_linears(model.talker)
        model.talker.code_predictor.build_lookup()
    encode_voice = None
    if config.voice_encoders and model.config.encoders is not None:
        encode_voice = load_encoders(folder, model.config.encoders, device)
    return build_family(model, codec)._replace(encode_voice=encode_voice)


def build_family(model: Qwen3TTS, codec: CodecFront) -> Family:
    parts = Codec(
        codec, codec.pre_conv.conv.weight.device, partial(new_ring, model), partial(make_codec_program, codec)
    )
    return Family(model, model.config.codec, partial(make_frames, model), codec=parts)


def weight_bytes(module: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))
