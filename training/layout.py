"""The released configuration files, written from the settings and read back by the engine's own reader."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from engine.models.qwen3_tts.config import (
    CODEC_MODEL_TYPE,
    MODEL_TYPE,
    NUM_CONTROL_IDS,
    CodecDecoderConfig,
    ConfigSection,
    QwenTalkerConfig,
    SourceFilterConfig,
    read_codec,
    read_talker,
)
from engine.text.tokenizer_files import SpecialIds
from training.settings import FRAME_SAMPLES, SAMPLE_RATE, Settings, Sizes

CONTROL_IDS = ("pad", "bos", "eos_token", "think", "nothink", "think_bos", "think_eos")
# Where in the control ids the language and the speakers live.
ENGLISH_OFFSET, SPEAKER_OFFSET = 16, 32


@dataclass(frozen=True)
class TextIds(SpecialIds):
    """Rows of the text vocabulary that frame a prompt."""

    vocab_size: int
    newline: int

    @property
    def special(self) -> SpecialIds:
        """The ids that the engine knows, too."""
        return SpecialIds(**{field.name: getattr(self, field.name) for field in fields(SpecialIds)})


def _stack(hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, head_dim: int) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
    }


def talker_section(settings: Settings, text_vocab_size: int) -> dict[str, Any]:
    sizes = settings.sizes
    heads = sizes.predictor_heads
    predictor = _stack(
        sizes.predictor_hidden, sizes.predictor_intermediate, sizes.predictor_layers, heads, heads, sizes.head_dim
    )
    common = {"num_code_groups": sizes.code_groups, "rms_norm_eps": 1e-6, "rope_theta": 10_000.0}
    return {
        **_stack(sizes.hidden, sizes.intermediate, sizes.layers, sizes.heads, sizes.kv_heads, sizes.head_dim),
        **common,
        "vocab_size": sizes.codebook + NUM_CONTROL_IDS,
        "text_vocab_size": text_vocab_size,
        "text_hidden_size": sizes.text_hidden,
        "max_position_embeddings": 4096,
        "code_predictor_config": {**predictor, **common, "vocab_size": sizes.codebook},
        **{f"codec_{name}_id": sizes.codebook + i for i, name in enumerate(CONTROL_IDS)},
        "codec_language_id": {"english": sizes.codebook + ENGLISH_OFFSET},
        "spk_id": {name: sizes.codebook + SPEAKER_OFFSET + i for i, name in enumerate(settings.speakers)},
        "spk_is_dialect": dict.fromkeys(settings.speakers, False),
    }


def codec_file(sizes: Sizes) -> dict[str, Any]:
    """``speech_tokenizer/config.json``."""
    heads = sizes.decoder_heads
    stack = _stack(
        sizes.decoder_transformer, sizes.decoder_intermediate, sizes.decoder_layers, heads, heads, sizes.head_dim
    )
    source_filter = {name: getattr(sizes, name) for name in SourceFilterConfig.__slots__}
    return {
        "model_type": CODEC_MODEL_TYPE,
        "input_sample_rate": SAMPLE_RATE,
        "output_sample_rate": SAMPLE_RATE,
        "decode_upsample_rate": FRAME_SAMPLES,
        "encode_downsample_rate": FRAME_SAMPLES,
        "encoder_valid_num_quantizers": sizes.code_groups,
        "decoder_config": {
            **stack,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10_000.0,
            "codebook_size": sizes.codebook,
            "codebook_dim": sizes.codebook_dim,
            "num_quantizers": sizes.code_groups,
            "latent_dim": sizes.latent,
            "decoder_dim": sizes.decoder,
            "sliding_window": sizes.decoder_window,
            "layer_scale_initial_scale": 0.01,
            "upsample_rates": list(sizes.upsample_rates),
            "upsampling_ratios": list(sizes.upsampling_ratios),
            **({"source_filter": source_filter} if sizes.pulse_cepstra else {}),
        },
    }


def model_file(settings: Settings, text: TextIds) -> dict[str, Any]:
    """``config.json``."""
    return {
        "model_type": MODEL_TYPE,
        "tts_model_type": "custom_voice",
        "tts_model_size": "embedded",
        "tokenizer_type": CODEC_MODEL_TYPE,
        **{f"{name}_token_id": getattr(text, name) for name in SpecialIds.__slots__},
        "talker_config": talker_section(settings, text.vocab_size),
    }


def generation_file(settings: Settings) -> dict[str, Any]:
    """``generation_config.json``."""
    sampling = settings.sampling
    return {
        "do_sample": True,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": 1.0,
        "repetition_penalty": sampling.repetition_penalty,
        "max_new_tokens": sampling.max_new_tokens,
        "subtalker_dosample": True,
        "subtalker_temperature": sampling.predictor_temperature,
        "subtalker_top_k": sampling.predictor_top_k,
        "subtalker_top_p": 1.0,
    }


def talker_config(settings: Settings, text_vocab_size: int) -> QwenTalkerConfig:
    return read_talker(ConfigSection(talker_section(settings, text_vocab_size), "talker_config"))


def codec_config(sizes: Sizes) -> CodecDecoderConfig:
    return read_codec(ConfigSection(codec_file(sizes), "speech_tokenizer/config.json"))
