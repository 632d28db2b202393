"""``cosyvoice3.yaml`` and ``CosyVoice-BlankEN/config.json`` into sizes, every key checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.errors import CheckpointError
from engine.layers.transformer import TransformerConfig
from engine.models.config_file import ConfigSection, read_json
from engine.models.cosyvoice3.config import (
    MAX_POSITIONS,
    MAX_TOP_K,
    MAX_WINDOW,
    CosyTalkerConfig,
    CosyVoice3Config,
    Dilations,
    DitConfig,
    FlowConfig,
    HiftConfig,
    RasConfig,
    SpeechIds,
)
from engine.models.cosyvoice3.hyperpyyaml import CLASS, read_yaml

CONFIG_FILE = "cosyvoice3.yaml"
BACKBONE_FOLDER = "CosyVoice-BlankEN"


def read_config(folder: Path) -> CosyVoice3Config:
    """Raises ``CheckpointError`` naming file, key and value."""
    values = read_yaml(folder / CONFIG_FILE)
    top = ConfigSection(values, CONFIG_FILE)
    _instantiated_section(top, "llm", "CosyVoice3LM")
    config = CosyVoice3Config(
        talker=_talker(top.section("llm"), read_json(folder / BACKBONE_FOLDER / "config.json")),
        flow=_flow(_instantiated_section(top, "flow", "CausalMaskedDiffWithDiT")),
        hift=_hift(_instantiated_section(top, "hift", "CausalHiFTGenerator")),
        token_rate=top.positive("token_frame_rate"),
    )
    _check_consistency(top, config)
    return config


def _instantiated_section(top: ConfigSection, key: str, name: str) -> ConfigSection:
    section = top.section(key)
    found = str(section.values.get(CLASS, ""))
    if not found.endswith(f".{name}"):
        raise CheckpointError(f"{CONFIG_FILE}: {key!r} is made into {found!r}; what is built here: {name}")
    return section


def _check_consistency(top: ConfigSection, config: CosyVoice3Config) -> None:
    """Numbers that are written down in two places, or that follow from others."""
    flow, hift, width = config.flow, config.hift, config.talker.transformer.hidden_size
    for name, found, wanted in (
        ("sample_rate", top.positive("sample_rate"), hift.sample_rate),
        ("llm_input_size", top.positive("llm_input_size"), width),
        ("llm_output_size", top.positive("llm_output_size"), width),
        ("token_mel_ratio", top.positive("token_mel_ratio"), flow.token_mel_ratio),
        ("flow.vocab_size", flow.vocab_size, config.talker.speech_ids.num_codes),
        ("flow.input_size", flow.input_size, flow.dit.mel_bins),
        ("hift.in_channels", hift.mel_bins, flow.dit.mel_bins),
        ("token_frame_rate", config.token_rate * config.frame_samples, hift.sample_rate),
    ):
        if found != wanted:
            raise CheckpointError(f"{CONFIG_FILE}: {name!r} makes {found}, other values make it {wanted}")


def _talker(llm: ConfigSection, backbone: ConfigSection) -> CosyTalkerConfig:
    mix = llm.positives("mix_ratio")
    if len(mix) != 2:
        raise CheckpointError(f"{llm.where}: 'mix_ratio' is {list(mix)}; it must hold two numbers, text and speech ids")
    sampling = llm.section("sampling")
    return CosyTalkerConfig(
        transformer=_transformer(backbone),
        text_vocab_size=backbone.positive("vocab_size"),
        max_positions=min(MAX_POSITIONS, backbone.positive("max_position_embeddings")),
        speech_ids=SpeechIds(llm.positive("speech_token_size")),
        block_text=mix[0],
        block_speech=mix[1],
        ras=RasConfig(
            top_p=sampling.positive_number("top_p"),
            top_k=sampling.positive("top_k", MAX_TOP_K),
            window=sampling.positive("win_size", MAX_WINDOW),
            tau=sampling.positive_number("tau_r"),
        ),
    )


def _transformer(backbone: ConfigSection) -> TransformerConfig:
    backbone.require_one_of("model_type", "qwen2")
    backbone.require_one_of("hidden_act", "silu")
    backbone.require_one_of("use_sliding_window", False)
    heads, width = backbone.count("num_attention_heads"), backbone.positive("hidden_size")
    groups = backbone.count("num_key_value_heads")
    if width % heads or heads % groups or width // heads % 2:
        raise CheckpointError(
            f"{backbone.where}: hidden_size {width} and num_attention_heads {heads} make no heads of an even size, "
            f"or num_key_value_heads {groups} no groups of them"
        )
    return TransformerConfig(
        hidden_size=width,
        intermediate_size=backbone.positive("intermediate_size"),
        num_hidden_layers=backbone.count("num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=groups,
        head_dim=width // heads,
        rms_norm_eps=backbone.positive_number("rms_norm_eps"),
        rope_theta=backbone.positive_number("rope_theta"),
        qk_norm=False,
        qkv_bias=True,
    )


def _flow(flow: ConfigSection) -> FlowConfig:
    decoder = flow.section("decoder")
    ahead = flow.section("pre_lookahead_layer")
    cfm = decoder.section("cfm_params").section("content")
    cfm.require_one_of("solver", "euler")
    cfm.require_one_of("t_scheduler", "cosine")
    return FlowConfig(
        input_size=flow.positive("input_size"),
        vocab_size=flow.positive("vocab_size"),
        spk_embed_size=flow.positive("spk_embed_dim"),
        pre_lookahead_tokens=flow.count("pre_lookahead_len"),
        pre_lookahead_hidden=ahead.positive("channels"),
        token_mel_ratio=flow.count("token_mel_ratio"),
        dit=_dit(decoder.section("estimator")),
        cfg_rate=cfm.number("inference_cfg_rate", 0.0),
    )


def _dit(dit: ConfigSection) -> DitConfig:
    bins = dit.positive("mel_dim")
    for key in ("mu_dim", "spk_dim", "out_channels"):
        dit.require_one_of(key, bins)
    return DitConfig(
        dim=dit.positive("dim"),
        depth=dit.count("depth"),
        heads=dit.count("heads"),
        head_dim=dit.positive("dim_head"),
        ff_mult=dit.count("ff_mult"),
        mel_bins=bins,
        block_frames=dit.positive("static_chunk_size"),
    )


def _hift(hift: ConfigSection) -> HiftConfig:
    istft, f0 = hift.section("istft_params"), hift.section("f0_predictor")
    f0.require_one_of("num_class", 1)
    return HiftConfig(
        mel_bins=hift.positive("in_channels"),
        base_channels=hift.positive("base_channels"),
        num_harmonics=hift.count("nb_harmonics"),
        sample_rate=hift.positive("sampling_rate"),
        nsf_alpha=hift.positive_number("nsf_alpha"),
        nsf_sigma=hift.positive_number("nsf_sigma"),
        voiced_threshold_hz=hift.number("nsf_voiced_threshold", 0.0),
        upsample_rates=hift.positives("upsample_rates"),
        upsample_kernels=hift.positives("upsample_kernel_sizes"),
        istft_n_fft=istft.positive("n_fft"),
        istft_hop=istft.positive("hop_len"),
        resblock_kernels=hift.positives("resblock_kernel_sizes"),
        resblock_dilations=_dilations(hift, "resblock_dilation_sizes"),
        source_resblock_kernels=hift.positives("source_resblock_kernel_sizes"),
        source_resblock_dilations=_dilations(hift, "source_resblock_dilation_sizes"),
        lrelu_slope=hift.positive_number("lrelu_slope"),
        audio_limit=hift.positive_number("audio_limit"),
        look_right_frames=hift.count("conv_pre_look_right"),
        f0_channels=f0.positive("cond_channels"),
    )


def _dilations(hift: ConfigSection, key: str) -> Dilations:
    rows: list[Any] = hift.get(key, list)
    return tuple(ConfigSection({key: row}, hift.where).positives(key) for row in rows)
