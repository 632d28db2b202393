"""Trained weights as a checkpoint folder in the released layout, fp16, in files of at most 16 MB."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from training.layout import TextIds, codec_file, generation_file, model_file
from training.settings import SAMPLE_RATE, Settings
from training.tokenizer import read_ids

MAX_SHARD_BYTES = 15_000_000
TOKENIZER_FILES = ("vocab.json", "merges.txt", "tokenizer_config.json")
PREPROCESSOR = {
    "padding_side": "left",
    "padding_value": 0.0,
    "processor_class": "Qwen3TTSProcessor",
    "return_attention_mask": True,
}
CODEC_PREPROCESSOR = {
    "feature_extractor_type": "EncodecFeatureExtractor",
    "feature_size": 1,
    "padding_side": "right",
    "padding_value": 0.0,
    "sampling_rate": SAMPLE_RATE,
}


def export(weights: Path, tokenizer: Path, folder: Path, settings: Settings) -> None:
    """``weights`` holds talker.safetensors and decoder.safetensors; ``tokenizer`` the files of the vocabulary."""
    (folder / "speech_tokenizer").mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", model_file(settings, TextIds(**read_ids(tokenizer, settings.sizes.text_vocab))))
    _write_json(folder / "generation_config.json", generation_file(settings))
    _write_json(folder / "preprocessor_config.json", PREPROCESSOR)
    _write_json(folder / "speech_tokenizer" / "config.json", codec_file(settings.sizes))
    _write_json(folder / "speech_tokenizer" / "preprocessor_config.json", CODEC_PREPROCESSOR)
    if tokenizer.resolve() != folder.resolve():
        for name in TOKENIZER_FILES:
            shutil.copyfile(tokenizer / name, folder / name)
    _write_weights(weights / "talker.safetensors", "talker.", folder)
    _write_weights(weights / "decoder.safetensors", "decoder.", folder / "speech_tokenizer")


def _write_weights(source: Path, prefix: str, folder: Path) -> None:
    """One file where it fits, else numbered shards and their index."""
    shards: list[dict[str, Tensor]] = [{}]
    for name, tensor in load_file(source).items():
        if _num_bytes(shards[-1]) + tensor.nbytes > MAX_SHARD_BYTES:
            shards.append({})
        shards[-1][prefix + name] = tensor
    if len(shards) == 1:
        save_file(shards[0], folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    for name, shard in zip(names, shards, strict=True):
        save_file(shard, folder / name, metadata={"format": "pt"})
    places = {tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
    total = sum(map(_num_bytes, shards))
    _write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": places})


def _num_bytes(shard: dict[str, Tensor]) -> int:
    return sum(tensor.nbytes for tensor in shard.values())


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n")
