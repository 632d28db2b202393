"""Small random CosyVoice3 checkpoints in the released layout; the onnx files are written elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.models.cosyvoice3.config import CosyTalkerConfig, CosyVoice3Config, FlowConfig, HiftConfig
from engine.models.cosyvoice3.hift_source import F0Predictor
from tests.engine.text.tokenizer_folder import train
from tests.fakes.cosyvoice3_dims import TINY
from tests.fakes.cosyvoice3_reference import pitch_of_mel
from tests.fakes.cosyvoice3_tensors import Shapes, flow_shapes, hift_shapes, normed_hift_shapes, talker_shapes

TEXT_FOLDER = "CosyVoice-BlankEN"
FIRST_SPECIAL = 151643
# Those that the tokenizer's files name; the others are added by the code that reads them.
RELEASED_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# Of the talker's logits: wide enough that an utterance does not end at once.
LOGIT_SPREAD = 3.0
# Mean and spread before the absolute value is taken: mostly voiced, some not.
F0_HZ, F0_SPREAD_HZ = 120.0, 90.0
FAR_ABOVE_HZ = 1e5
WEIGHT_NORMS = {"new": ("parametrizations.weight.original0", "parametrizations.weight.original1")} | {
    "old": ("weight_g", "weight_v")
}


def write_cosyvoice3(
    folder: Path,
    config: CosyVoice3Config = TINY,
    seed: int = 0,
    *,
    is_tuned: bool = False,
    weight_norm: str = "new",
    logit_spread: float = LOGIT_SPREAD,
) -> Path:
    """A whole folder but for the onnx files. ``is_tuned`` calls the talker llm.rl.pt."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cosyvoice3.yaml").write_text(settings_text(config), encoding="utf-8")
    write_text_folder(folder / TEXT_FOLDER, config.talker)
    torch.save(talker_tensors(config.talker, seed, logit_spread), folder / ("llm.rl.pt" if is_tuned else "llm.pt"))
    torch.save(flow_tensors(config.flow, seed + 1), folder / "flow.pt")
    hift = with_weight_norm(hift_tensors(config.hift, seed + 2), config.hift, weight_norm, seed + 3)
    torch.save(hift, folder / "hift.pt")
    return folder


def random_tensors(shapes: Shapes, seed: int) -> dict[str, Tensor]:
    """Unit-gain weights, norms about one, small biases: every path shows in the output and nothing saturates."""
    generator = torch.Generator().manual_seed(seed)
    return {name: random_tensor(name, shape, generator) for name, shape in shapes.items()}


def random_tensor(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    values = torch.randn(shape, generator=generator)
    if "embed" in name and name.endswith(("embed_tokens.weight", "_embedding.weight")):
        return values
    if len(shape) > 1:
        return values * 0.8 * torch.tensor(shape[1:]).prod().item() ** -0.5
    if name.endswith("weight"):
        return 1 + 0.1 * values
    return 0.6 + 0.2 * values.abs() if name.endswith("alpha") else 0.05 * values


def talker_tensors(config: CosyTalkerConfig, seed: int, logit_spread: float = LOGIT_SPREAD) -> dict[str, Tensor]:
    shapes = talker_shapes(config)
    del shapes["llm.model.lm_head.weight"]
    tensors = random_tensors(shapes, seed)
    tensors["llm_decoder.weight"] *= logit_spread / 0.8
    tensors["llm.model.lm_head.weight"] = tensors["llm.model.model.embed_tokens.weight"]
    return tensors


def flow_tensors(config: FlowConfig, seed: int) -> dict[str, Tensor]:
    tensors = random_tensors(flow_shapes(config), seed)
    size = config.dit.head_dim
    tensors["decoder.estimator.rotary_embed.inv_freq"] = 1 / 10000 ** (torch.arange(0, size, 2) / size)
    return tensors


def hift_tensors(config: HiftConfig, seed: int) -> dict[str, Tensor]:
    """Folded: plain weights. Loud enough to be heard, quiet enough not to be limited."""
    tensors = random_tensors(hift_shapes(config), seed)
    tune_pitch(tensors, config)
    tensors["m_source.l_linear.weight"] *= 4
    num_bins = config.istft_n_fft // 2 + 1
    tensors["conv_post.weight"][:num_bins] *= 0.5
    tensors["conv_post.bias"][:num_bins] += 0.2
    return tensors


def tune_pitch(tensors: dict[str, Tensor], config: HiftConfig) -> None:
    """Of a random mel, the pitch of a voice."""
    name = "f0_predictor."
    weight, bias = tensors[f"{name}classifier.weight"], tensors[f"{name}classifier.bias"]
    predictor = F0Predictor(config)
    predictor.load_state_dict({key.removeprefix(name): x for key, x in tensors.items() if key.startswith(name)})
    predictor.requires_grad_(False).classifier.bias.fill_(FAR_ABOVE_HZ)
    mel = torch.randn(1, config.mel_bins, 400, generator=torch.Generator().manual_seed(0))
    hz = pitch_of_mel(predictor, mel) - FAR_ABOVE_HZ
    scale = F0_SPREAD_HZ / hz.std()
    weight *= scale
    bias.fill_(F0_HZ - float(scale * hz.mean()))


def with_weight_norm(tensors: dict[str, Tensor], config: HiftConfig, spelling: str, seed: int) -> dict[str, Tensor]:
    """Each normed weight as a gain and a direction of another length."""
    generator = torch.Generator().manual_seed(seed)
    gain_name, direction_name = WEIGHT_NORMS[spelling]
    split = dict(tensors)
    for name, shape in normed_hift_shapes(config):
        if name.endswith(".weight"):
            weight, stem = split.pop(name), name.removesuffix("weight")
            split[stem + gain_name] = weight.flatten(1).norm(dim=1).view(-1, 1, 1)
            length = 0.5 + torch.rand(shape[0], 1, 1, generator=generator)
            split[stem + direction_name] = weight * length
    return split


def write_text_folder(folder: Path, config: CosyTalkerConfig) -> None:
    """A small byte-level BPE whose special tokens have the released ids."""
    folder.mkdir(exist_ok=True)
    vocab, merges = train()
    (folder / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    added = {
        str(FIRST_SPECIAL + place): {"content": content, "special": True, "normalized": False}
        | {"lstrip": False, "rstrip": False, "single_word": False}
        for place, content in enumerate(RELEASED_SPECIALS)
    }
    tokenizer = {"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": added, "add_prefix_space": False}
    tokenizer |= {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>", "unk_token": None, "bos_token": None}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer, indent=1), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(text_config(config), indent=1), encoding="utf-8")


def text_config(config: CosyTalkerConfig) -> dict[str, Any]:
    stack = config.transformer
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "attention_dropout": 0.0,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "hidden_act": "silu",
        "hidden_size": stack.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": stack.intermediate_size,
        "max_position_embeddings": 32768,
        "max_window_layers": stack.num_hidden_layers,
        "model_type": "qwen2",
        "num_attention_heads": stack.num_attention_heads,
        "num_hidden_layers": stack.num_hidden_layers,
        "num_key_value_heads": stack.num_key_value_heads,
        "rms_norm_eps": stack.rms_norm_eps,
        "rope_theta": stack.rope_theta,
        "sliding_window": 32768,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": config.text_vocab_size,
    }


def settings_text(config: CosyVoice3Config) -> str:
    """cosyvoice3.yaml in the released shape, object-making tags included; those must not be followed."""
    stack, flow, hift = config.talker.transformer, config.flow, config.hift
    return (
        (Path(__file__).parent / "cosyvoice3.yaml")
        .read_text()
        .format(
            config=config,
            stack=stack,
            flow=flow,
            hift=hift,
            dit=flow.dit,
            ras=config.talker.ras,
            block_tokens=flow.dit.block_frames // flow.token_mel_ratio,
            mix_ratio=[config.talker.block_text, config.talker.block_speech],
            upsample_rates=list(hift.upsample_rates),
            upsample_kernels=list(hift.upsample_kernels),
            resblock_kernels=list(hift.resblock_kernels),
            resblock_dilations=[list(row) for row in hift.resblock_dilations],
            source_kernels=list(hift.source_resblock_kernels),
            source_dilations=[list(row) for row in hift.source_resblock_dilations],
        )
    )
