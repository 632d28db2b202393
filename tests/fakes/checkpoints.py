"""Small random checkpoints in the released layout: real files for the real loader."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import Tensor, nn

from engine.layers.streaming import Snake
from engine.layers.transformer import LayerScale
from engine.models.config_file import read_json
from engine.models.qwen3_tts.codec_decoder import Codebook, CodecDecoder, ConvNeXtBlock
from engine.models.qwen3_tts.codec_encoder import CodecEncoder, EncoderCodebook
from engine.models.qwen3_tts.config import read_config
from engine.models.qwen3_tts.encoder_config import read_codec_encoder
from engine.models.qwen3_tts.speaker_encoder import SpeakerEncoder
from engine.models.qwen3_tts.talker import Talker

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>")
BPE_TEXT = ["assistant user the quick brown fox jumps over the lazy dog " * 4, "Hello, world! How are you today?\n"] * 4

GENERATION = dict(
    do_sample=True, temperature=0.9, top_k=50, top_p=1.0, repetition_penalty=1.05, max_new_tokens=8192
) | {
    "subtalker_dosample": True,
    "subtalker_temperature": 0.9,
    "subtalker_top_k": 50,
    "subtalker_top_p": 1.0,
}

NUM_ENCODER_BOOKS = 6

# Widths of the 0.6B shape in small: the predictor is as wide as the talker and has no projection.
TINY: dict[str, Any] = {
    "talker": dict(hidden=48, intermediate=96, layers=3, heads=4, kv_heads=2, head_dim=16, text_hidden=40),
    "predictor": dict(hidden=48, intermediate=64, layers=2, heads=4, kv_heads=2, head_dim=16),
    "codec": dict(hidden=32, intermediate=48, layers=2, heads=2, kv_heads=2, head_dim=16),
    "codec_sizes": dict(codebook_dim=32, latent_dim=48, decoder_dim=32, sliding_window=12),
    "rates": ([8, 5, 4, 3], [2, 2]),
    "books": 4,
    "codes": 64,
    "size": "0b6",
    "encoder": dict(num_filters=2, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, head_dim=16)
    | dict(num_key_value_heads=2, intermediate_size=48, codebook_dim=16, num_quantizers=NUM_ENCODER_BOOKS)
    | dict(vector_quantization_hidden_dimension=16, upsample_groups=32),
    "speaker": dict(enc_channels=[16, 16, 16, 16, 48], enc_attention_channels=12, enc_se_channels=8),
}

# The 1.7B shape in small: the predictor is narrower and stands behind a projection.
TINY_PROJECTED = TINY | {"predictor": TINY["predictor"] | {"hidden": 32}, "size": "1b7"}

# The sizes of the embedded voice.
EMBEDDED: dict[str, Any] = {
    "talker": dict(hidden=320, intermediate=896, layers=6, heads=5, kv_heads=1, head_dim=64, text_hidden=256),
    "predictor": dict(hidden=320, intermediate=768, layers=1, heads=5, kv_heads=5, head_dim=64),
    "codec": dict(hidden=256, intermediate=512, layers=2, heads=4, kv_heads=4, head_dim=64),
    "codec_sizes": dict(codebook_dim=128, latent_dim=256, decoder_dim=128, sliding_window=12),
    "rates": ([8, 5, 4, 3], [2, 2]),
    "books": 8,
    "codes": 512,
    "size": "embedded",
}


def _stack(sizes: dict[str, int], theta: float, eps: float) -> dict[str, Any]:
    return {
        "hidden_size": sizes["hidden"],
        "intermediate_size": sizes["intermediate"],
        "num_hidden_layers": sizes["layers"],
        "num_attention_heads": sizes["heads"],
        "num_key_value_heads": sizes["kv_heads"],
        "head_dim": sizes["head_dim"],
        "rms_norm_eps": eps,
        "rope_theta": theta,
    }


def write_tokenizer(folder: Path, vocab_size: int = 400, texts: Sequence[str] = BPE_TEXT) -> dict[str, int]:
    """A byte-level BPE in Qwen2 file format, trained on ``texts``; returns the special tokens' ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    )
    model = json.loads(tokenizer.to_str())["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]), encoding="utf-8")
    merges = [" ".join(m) if isinstance(m, list) else m for m in model["merges"]]
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
    ids = {name: len(model["vocab"]) + i for i, name in enumerate(SPECIALS)}
    added = {str(i): {"content": name, "special": True} for name, i in ids.items()}
    config = {"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": added}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return ids | {"assistant": model["vocab"]["assistant"]}


def model_config(shape: dict[str, Any], ids: dict[str, int], task: str) -> dict[str, Any]:
    codes, books = shape["codes"], shape["books"]
    top = codes
    talker = _stack(shape["talker"], 1e6, 1e-6) | {
        "text_hidden_size": shape["talker"]["text_hidden"],
        "text_vocab_size": max(shape.get("text_rows", 0), max(ids.values()) + 3),
        "vocab_size": codes + 1024,
        "num_code_groups": books,
        "max_position_embeddings": 4096,
        "codec_pad_id": top + 100,
        "codec_bos_id": top + 101,
        "codec_eos_token_id": top + 102,
        "codec_think_id": top + 106,
        "codec_nothink_id": top + 107,
        "codec_think_bos_id": top + 108,
        "codec_think_eos_id": top + 109,
        "codec_language_id": {"english": top + 2, "chinese": top + 7, "german": top + 5, "beijing_dialect": top + 26},
        "spk_id": {"ada": top + 1001, "Bo": [top + 1002], "dylan": top + 1003} if task == "custom_voice" else {},
        "spk_is_dialect": {"ada": False, "Bo": False, "dylan": "beijing_dialect"} if task == "custom_voice" else {},
        "rope_scaling": {"mrope_section": mrope_section(shape["talker"]["head_dim"]), "interleaved": True}
        | {"rope_type": "default", "type": "default"},
        "position_id_per_seconds": 13,
        "hidden_act": "silu",
        "attention_bias": False,
        "code_predictor_config": _stack(shape["predictor"], 1e6, 1e-6)
        | {"vocab_size": codes, "num_code_groups": books, "max_position_embeddings": 65536, "rope_scaling": None},
    }
    listening = {"speaker_encoder_config": speaker_config(shape)} if task == "base" else {}
    return listening | {
        "model_type": "qwen3_tts",
        "transformers_version": "4.57.2",
        "tts_model_type": task,
        "tts_model_size": shape["size"],
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "im_start_token_id": ids["<|im_start|>"],
        "im_end_token_id": ids["<|im_end|>"],
        "assistant_token_id": ids["assistant"],
        "tts_pad_token_id": ids["<tts_pad>"],
        "tts_bos_token_id": ids["<tts_text_bos>"],
        "tts_eos_token_id": ids["<tts_text_eod>"],
        "talker_config": talker,
    }


def mrope_section(head_dim: int) -> list[int]:
    """How a released configuration shares the angles out between three axes that always agree."""
    third = head_dim // 6
    return [head_dim // 2 - 2 * third, third, third]


def speaker_config(shape: dict[str, Any]) -> dict[str, Any]:
    return {"enc_dim": shape["talker"]["hidden"], "sample_rate": 24000} | shape["speaker"]


def codec_config(shape: dict[str, Any]) -> dict[str, Any]:
    rates, ratios = shape["rates"]
    decoder = _stack(shape["codec"], 1e4, 1e-5) | shape["codec_sizes"]
    decoder |= {"codebook_size": shape["codes"], "num_quantizers": shape["books"]}
    decoder |= {"upsample_rates": rates, "upsampling_ratios": ratios}
    encoder = {"codebook_size": shape["codes"], "upsampling_ratios": [8, 6, 5, 4]} | shape.get("encoder", {})
    listening = {"encoder_config": encoder} if "encoder" in shape else {}
    return listening | {
        "model_type": "qwen3_tts_tokenizer_12hz",
        "input_sample_rate": 24000,
        "output_sample_rate": 24000,
        "decode_upsample_rate": 1920,
        "encode_downsample_rate": 1920,
        "encoder_valid_num_quantizers": shape["books"],
        "decoder_config": decoder,
    }


@torch.no_grad()
def randomize(module: nn.Module, seed: int) -> None:
    """Unit-gain weights, so that every path shows in the output and nothing saturates."""
    generator = torch.Generator().manual_seed(seed)
    for child in module.modules():
        for name, value in child.named_parameters(recurse=False):
            fan_in = value[0].numel() if value.dim() > 1 else 0
            if isinstance(child, nn.Embedding):
                value.normal_(generator=generator)
            elif fan_in:
                value.normal_(0, 0.7 * fan_in**-0.5, generator=generator)
            elif isinstance(child, LayerScale | ConvNeXtBlock):
                value.normal_(0.3, 0.05, generator=generator)
            elif isinstance(child, Snake):
                value.normal_(0, 0.1, generator=generator)
            elif name == "weight":
                value.normal_(1, 0.1, generator=generator)
            else:
                value.normal_(0, 0.05, generator=generator)
        if isinstance(child, Codebook | EncoderCodebook):
            sums = child.embedding_sum if isinstance(child, Codebook) else child.embed_sum
            sums.normal_(generator=generator)
            child.cluster_usage.uniform_(0.5, 2, generator=generator)
            child.cluster_usage[0] = 0.0
            sums[0] *= 1e-5


def write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=1), encoding="utf-8")


def write_settings(folder: Path, shape: dict[str, Any], ids: dict[str, int], task: str) -> None:
    """Every file but the weights and the tokenizer's."""
    codec_folder = folder / "speech_tokenizer"
    codec_folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", model_config(shape, ids, task))
    write_json(folder / "generation_config.json", GENERATION)
    write_json(folder / "preprocessor_config.json", {"processor_class": "Qwen3TTSProcessor", "padding_side": "left"})
    write_json(codec_folder / "config.json", codec_config(shape))
    extractor = {"feature_extractor_type": "EncodecFeatureExtractor", "sampling_rate": 24000, "feature_size": 1}
    write_json(codec_folder / "preprocessor_config.json", extractor | {"padding_side": "right", "padding_value": 0.0})


def random_tensors(module: nn.Module, prefix: str, seed: int) -> dict[str, Tensor]:
    randomize(module, seed)
    return {f"{prefix}{name}": tensor.contiguous() for name, tensor in module.state_dict().items()}


def write_checkpoint(
    folder: Path,
    shape: dict[str, Any] = TINY,
    seed: int = 0,
    task: str = "custom_voice",
    dtype: torch.dtype = torch.float32,
) -> Path:
    """A whole folder; its speech is noise, but every file, key and tensor is in place."""
    folder.mkdir(parents=True, exist_ok=True)
    write_settings(folder, shape, write_tokenizer(folder), task)
    write_weights(folder, seed, dtype)
    return folder


def unused_tensors(encoder: CodecEncoder, num_books: int) -> dict[str, Tensor]:
    """What a released file holds besides: marks of training, the way back, and books past those in use."""
    chains = dict(encoder.quantizer.named_children())
    unused = {}
    for name, chain in chains.items():
        unused[f"{name}.output_proj.weight"] = chain.input_proj.weight.detach().transpose(0, 1).contiguous()
        wanted = 1 if name.startswith("semantic") else num_books - 1
        for i in range(wanted):
            book = f"{name}.layers.{i}.codebook"
            unused[f"{book}.initialized"] = torch.ones(1)
            if i >= len(chain.layers):
                unused[f"{book}.embed_sum"] = torch.ones_like(chain.layers[0].codebook.embed_sum)
                unused[f"{book}.cluster_usage"] = torch.ones_like(chain.layers[0].codebook.cluster_usage)
    return {f"encoder.quantizer.{name}": tensor for name, tensor in unused.items()}


def write_weights(folder: Path, seed: int, dtype: torch.dtype = torch.float32) -> None:
    """Random tensors for the settings in ``folder``, the same for a seed; the codec's are fp32 in releases too."""
    config = read_config(folder)
    model = random_tensors(Talker(config.talker), "talker.", seed)
    codec = random_tensors(CodecDecoder(config.codec), "decoder.", seed + 1)
    codec_file = read_json(folder / "speech_tokenizer" / "config.json")
    if config.encoders is not None:
        model |= random_tensors(SpeakerEncoder(config.encoders.speaker), "speaker_encoder.", seed + 2)
    if "encoder_config" in codec_file.values:
        encoder = CodecEncoder(read_codec_encoder(codec_file))
        codec |= random_tensors(encoder, "encoder.", seed + 3) | unused_tensors(encoder, NUM_ENCODER_BOOKS)
    model = {name: tensor.to(dtype) for name, tensor in model.items()}
    save_file(model, folder / "model.safetensors", {"format": "pt"})
    save_file(codec, folder / "speech_tokenizer" / "model.safetensors", {"format": "pt"})
