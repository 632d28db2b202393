"""Configuration of the encoders of a base checkpoint: speaker encoder and codec encoder (spec 1.4, 5.6, 6)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine.errors import CheckpointError
from engine.models.config_file import ConfigSection, read_rope_theta

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

    hidden_size: int
    num_filters: int
    kernel_size: int
    residual_kernel_size: int
    last_kernel_size: int
    num_residual_layers: int
    dilation_growth: int
    compress: int
    rates: tuple[int, ...]
    num_layers: int
    num_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float
    rope_theta: float
    codebook_size: int
    codebook_dim: int
    num_used_books: int
    sample_rate: int

    @property
    def frame_samples(self) -> int:
        return 2 * math.prod(self.rates)


@dataclass(frozen=True, slots=True)
class SpeakerEncoderConfig:
    size: int
    sample_rate: int
    num_mels: int
    channels: tuple[int, ...]
    kernel_sizes: tuple[int, ...]
    dilations: tuple[int, ...]
    attention_channels: int
    res2net_scale: int
    se_channels: int


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
    config = CodecEncoderConfig(
        hidden_size=section.positive("hidden_size"),
        num_filters=section.positive("num_filters"),
        kernel_size=section.positive("kernel_size"),
        residual_kernel_size=section.positive("residual_kernel_size"),
        last_kernel_size=section.positive("last_kernel_size"),
        num_residual_layers=section.count("num_residual_layers"),
        dilation_growth=section.positive("dilation_growth_rate"),
        compress=section.positive("compress"),
        rates=section.positives("upsampling_ratios"),
        num_layers=section.count("num_hidden_layers"),
        num_heads=section.count("num_attention_heads"),
        head_dim=section.positive("head_dim"),
        intermediate_size=section.positive("intermediate_size"),
        norm_eps=section.positive_number("norm_eps"),
        rope_theta=read_rope_theta(section),
        codebook_size=section.positive("codebook_size"),
        codebook_dim=section.positive("codebook_dim"),
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
    config = SpeakerEncoderConfig(
        size=section.positive("enc_dim"),
        sample_rate=section.positive("sample_rate"),
        num_mels=section.positive("mel_dim"),
        channels=section.positives("enc_channels"),
        kernel_sizes=section.positives("enc_kernel_sizes"),
        dilations=section.positives("enc_dilations"),
        attention_channels=section.positive("enc_attention_channels"),
        res2net_scale=section.count("enc_res2net_scale"),
        se_channels=section.positive("enc_se_channels"),
    )
    lengths = {len(config.channels), len(config.kernel_sizes), len(config.dilations)}
    if len(lengths) != 1 or len(config.channels) < 3 or sum(config.channels[1:-1]) != config.channels[-1]:
        raise CheckpointError(f"{section.where}: channels, kernel sizes and dilations do not fit each other")
    if any(channels % config.res2net_scale for channels in config.channels[1:-1]):
        raise CheckpointError(f"{section.where}: enc_channels do not fall into {config.res2net_scale} parts")
    return config
