"""Sizes of small CosyVoice3 checkpoints; what the released code has fixed (vocabularies, mel, rates) is as released."""

from __future__ import annotations

from engine.layers.transformer import TransformerConfig
from engine.models.cosyvoice3.config import CosyTalkerConfig, CosyVoice3Config, DitConfig, FlowConfig, HiftConfig

TINY = CosyVoice3Config(
    talker=CosyTalkerConfig(
        transformer=TransformerConfig(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            rms_norm_eps=1e-6,
            rope_theta=1e6,
            qk_norm=False,
            qkv_bias=True,
        )
    ),
    flow=FlowConfig(pre_lookahead_hidden=48, dit=DitConfig(dim=64, depth=3, heads=2, head_dim=32)),
    hift=HiftConfig(base_channels=32, f0_channels=16),
)

# Others in every place where sizes may differ.
SMALL = CosyVoice3Config(
    talker=CosyTalkerConfig(
        transformer=TransformerConfig(
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=1,
            head_dim=16,
            rms_norm_eps=1e-6,
            rope_theta=1e6,
            qk_norm=False,
            qkv_bias=True,
        )
    ),
    flow=FlowConfig(pre_lookahead_hidden=64, dit=DitConfig(dim=128, depth=2, heads=2, head_dim=64)),
    hift=HiftConfig(base_channels=64, f0_channels=32),
)

SHAPES = {"tiny": TINY, "small": SMALL, "released": CosyVoice3Config()}
