"""Names and shapes of all tensors in the weight files of a CosyVoice3 release."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from engine.models.cosyvoice3.config import CosyTalkerConfig, DitConfig, FlowConfig, HiftConfig

Shapes = dict[str, tuple[int, ...]]
NUM_SPEAKER_VALUES = 192
TIME_FEATURES = 256


def linear(name: str, rows: int, *rest: int) -> Shapes:
    return {f"{name}.weight": (rows, *rest), f"{name}.bias": (rows,)}


def talker_shapes(config: CosyTalkerConfig) -> Shapes:
    """What llm.pt holds; ``llm.model.lm_head.weight`` is the text table once more."""
    stack = config.transformer
    wide, speech = stack.hidden_size, (config.speech_ids.table_size, stack.hidden_size)
    shapes: Shapes = {
        "llm.model.model.embed_tokens.weight": (config.text_vocab_size, wide),
        "llm.model.model.norm.weight": (wide,),
        "llm.model.lm_head.weight": (config.text_vocab_size, wide),
        "llm_decoder.weight": speech,
        "speech_embedding.weight": speech,
    }
    for i in range(stack.num_hidden_layers):
        shapes |= layer_shapes(config, f"llm.model.model.layers.{i}")
    return shapes


def layer_shapes(config: CosyTalkerConfig, layer: str) -> Shapes:
    stack = config.transformer
    wide, hidden = stack.hidden_size, stack.intermediate_size
    heads = {"q": stack.num_attention_heads, "k": stack.num_key_value_heads, "v": stack.num_key_value_heads}
    shapes: Shapes = {}
    for letter, count in heads.items():
        shapes |= linear(f"{layer}.self_attn.{letter}_proj", count * stack.head_dim, wide)
    return shapes | {
        f"{layer}.self_attn.o_proj.weight": (wide, stack.num_attention_heads * stack.head_dim),
        f"{layer}.mlp.gate_proj.weight": (hidden, wide),
        f"{layer}.mlp.up_proj.weight": (hidden, wide),
        f"{layer}.mlp.down_proj.weight": (wide, hidden),
        f"{layer}.input_layernorm.weight": (wide,),
        f"{layer}.post_attention_layernorm.weight": (wide,),
    }


def flow_shapes(config: FlowConfig) -> Shapes:
    bins, hidden = config.input_size, config.pre_lookahead_hidden
    return {
        "input_embedding.weight": (config.vocab_size, bins),
        **linear("spk_embed_affine_layer", bins, config.spk_embed_size),
        **linear("pre_lookahead_layer.conv1", hidden, bins, config.pre_lookahead_tokens + 1),
        **linear("pre_lookahead_layer.conv2", bins, hidden, 3),
        **{f"decoder.estimator.{name}": shape for name, shape in dit_shapes(config.dit).items()},
    }


def dit_shapes(config: DitConfig) -> Shapes:
    wide, inner = config.dim, config.heads * config.head_dim
    shapes = {
        **linear("time_embed.time_mlp.0", wide, TIME_FEATURES),
        **linear("time_embed.time_mlp.2", wide, wide),
        **linear("input_embed.proj", wide, 4 * config.mel_bins),
        "rotary_embed.inv_freq": (config.head_dim // 2,),
        **linear("norm_out.linear", 2 * wide, wide),
        **linear("proj_out", config.mel_bins, wide),
    }
    for name in ("conv1", "conv2"):
        per_group = wide // config.conv_pos_groups
        shapes |= linear(f"input_embed.conv_pos_embed.{name}.0", wide, per_group, config.conv_pos_kernel)
    for i in range(config.depth):
        block = f"transformer_blocks.{i}"
        shapes |= linear(f"{block}.attn_norm.linear", 6 * wide, wide)
        for letter in "qkv":
            shapes |= linear(f"{block}.attn.to_{letter}", inner, wide)
        shapes |= linear(f"{block}.attn.to_out.0", wide, inner)
        shapes |= linear(f"{block}.ff.ff.0.0", config.ff_mult * wide, wide)
        shapes |= linear(f"{block}.ff.ff.2", wide, config.ff_mult * wide)
    return shapes


def hift_shapes(config: HiftConfig) -> Shapes:
    """With every weight norm folded: what ``with_weight_norm`` takes apart."""
    shapes = dict(normed_hift_shapes(config))
    spectrum, channels = config.istft_n_fft + 2, [config.base_channels >> i for i in range(4)]
    strides = (15, 3, 1)
    for i, stride in enumerate(strides):
        kernel = 2 * stride if stride > 1 else 1
        shapes |= linear(f"source_downs.{i}", channels[i + 1], spectrum, kernel)
    for name, wide in resblock_channels(config):
        for side, j in product((1, 2), range(3)):
            shapes[f"{name}.activations{side}.{j}.alpha"] = (wide,)
    shapes |= linear("m_source.l_linear", 1, config.num_harmonics + 1)
    return shapes | linear("f0_predictor.classifier", 1, config.f0_channels)


def normed_hift_shapes(config: HiftConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Those convolutions that carry a weight norm, and their biases."""
    base, bins = config.base_channels, config.mel_bins
    yield from linear("conv_pre", base, bins, config.look_right_frames + 1).items()
    for i, kernel in enumerate(config.upsample_kernels):
        yield from linear(f"ups.{i}", base >> (i + 1), base >> i, kernel).items()
    yield from linear("conv_post", config.istft_n_fft + 2, base >> 3, 7).items()
    yield from linear("f0_predictor.condnet.0", config.f0_channels, bins, 4).items()
    for i in (2, 4, 6, 8):
        yield from linear(f"f0_predictor.condnet.{i}", config.f0_channels, config.f0_channels, 3).items()
    kernels = [*config.source_resblock_kernels, *config.resblock_kernels * 3]
    for (name, wide), kernel in zip(resblock_channels(config), kernels, strict=True):
        for side, j in product((1, 2), range(3)):
            yield from linear(f"{name}.convs{side}.{j}", wide, wide, kernel).items()


def resblock_channels(config: HiftConfig) -> list[tuple[str, int]]:
    source = [(f"source_resblocks.{i}", config.base_channels >> (i + 1)) for i in range(3)]
    return source + [(f"resblocks.{i}", config.base_channels >> (i // 3 + 1)) for i in range(9)]
