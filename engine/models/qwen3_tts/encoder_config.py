"""Configuration of the encoders of a base checkpoint: speaker encoder and codec encoder (spec 1.4, 5.6, 6)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine.errors import CheckpointError
from engine.models.config_file import ConfigSection, Count, Scale, Size, Sizes, read_rope_theta

# The published codec that the encoder is; its configuration files leave out what equals these.
MIMI: dict[str, object] = {
    "audio_channels": 1,
    "hidden_size": 512,
    "num_filters": 64,
    "kernel_size": 7,
    "residual_kernel_size": 3,
    "last_kernel_size": 3,
    "num_residual_layers": 1,
    "dilation_growth_rate": 2,
    "compress": 2,
    "upsampling_ratios": [8, 6, 5, 4],
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "head_dim": 64,
    "intermediate_size": 2048,
    "norm_eps": 1e-5,
    "rope_theta": 1e4,
    "num_quantizers": 32,
    "num_semantic_quantizers": 1,
    "codebook_size": 2048,
    "codebook_dim": 256,
    "use_causal_conv": True,
    "use_conv_shortcut": False,
    "pad_mode": "constant",
    "hidden_act": "gelu",
    "attention_bias": False,
}
MIMI_FIXED = (
    "audio_channels",
    "num_semantic_quantizers",
    "use_causal_conv",
    "use_conv_shortcut",
    "pad_mode",
    "hidden_act",
    "attention_bias",
)
# Released files leave these out (spec 6).
SPEAKER_ENCODER: dict[str, object] = {
    "mel_dim": 128,
    "enc_channels": [512, 512, 512, 512, 1536],
    "enc_kernel_sizes": [5, 3, 3, 3, 1],
    "enc_dilations": [1, 2, 3, 4, 1],
    "enc_attention_channels": 128,
    "enc_res2net_scale": 8,
    "enc_se_channels": 128,
}


@dataclass(frozen=True, slots=True)
class CodecEncoderConfig:
    """The encoder of the speech tokenizer: a published codec's, of whose books the first are used (spec 1.4)."""

    hidden_size: Size
    num_filters: Size
    kernel_size: Size
    residual_kernel_size: Size
    last_kernel_size: Size
    num_residual_layers: Count
    dilation_growth: Size
    compress: Size
    rates: Sizes
    num_layers: Count
    num_heads: Count
    head_dim: Size
    intermediate_size: Size
    norm_eps: Scale
    rope_theta: float
    codebook_size: Size
    codebook_dim: Size
    num_used_books: Count
    sample_rate: Size

    @property
    def frame_samples(self) -> int:
        return 2 * math.prod(self.rates)


@dataclass(frozen=True, slots=True)
class SpeakerEncoderConfig:
    size: Size
    sample_rate: Size
    num_mels: Size
    channels: Sizes
    kernel_sizes: Sizes
    dilations: Sizes
    attention_channels: Size
    res2net_scale: Count
    se_channels: Size


@dataclass(frozen=True, slots=True)
class EncoderConfigs:
    """Configuration of both encoders."""

    speaker: SpeakerEncoderConfig
    codec: CodecEncoderConfig


def read_codec_encoder(file: ConfigSection) -> CodecEncoderConfig:
    given = file.section("encoder_config")
    defaults = {
        key: value for key, value in MIMI.items() if key != "rope_theta" or "rope_parameters" not in given.values
    }
    section = ConfigSection({**defaults, **given.values}, given.where)
    for key in MIMI_FIXED:
        section.require_one_of(key, MIMI[key])
    keys = {
        "dilation_growth": "dilation_growth_rate",
        "rates": "upsampling_ratios",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
    }
    config = section.read(
        CodecEncoderConfig,
        keys,
        rope_theta=read_rope_theta(section),
        num_used_books=file.count("encoder_valid_num_quantizers"),
        sample_rate=file.positive("input_sample_rate"),
    )
    if not 2 <= config.num_used_books <= section.count("num_quantizers"):
        found = f"'encoder_valid_num_quantizers' is {config.num_used_books}"
        raise CheckpointError(f"{file.where}: {found}; the encoder has {section.values['num_quantizers']} books")
    if config.frame_samples != file.positive("encode_downsample_rate"):
        declared = file.values["encode_downsample_rate"]
        raise CheckpointError(f"{section.where}: rates multiply to {config.frame_samples}, not {declared}")
    return config


def read_speaker_encoder(file: ConfigSection) -> SpeakerEncoderConfig:
    given = file.section("speaker_encoder_config")
    section = ConfigSection({**SPEAKER_ENCODER, **given.values}, given.where)
    names = ("channels", "kernel_sizes", "dilations", "attention_channels", "res2net_scale", "se_channels")
    keys = {"size": "enc_dim", "num_mels": "mel_dim"} | {name: f"enc_{name}" for name in names}
    config = section.read(SpeakerEncoderConfig, keys)
    lengths = {len(config.channels), len(config.kernel_sizes), len(config.dilations)}
    if len(lengths) != 1 or len(config.channels) < 3 or sum(config.channels[1:-1]) != config.channels[-1]:
        raise CheckpointError(f"{section.where}: channels, kernel sizes and dilations do not fit each other")
    if any(channels % config.res2net_scale for channels in config.channels[1:-1]):
        raise CheckpointError(f"{section.where}: enc_channels do not fall into {config.res2net_scale} parts")
    return config
