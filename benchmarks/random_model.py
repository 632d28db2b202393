"""Generate random weights in the shapes of the released checkpoints: speed does not depend on values.

The files beside the weights are those of the tests' small checkpoints, with other sizes and, for released shapes,
another tokenizer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from engine.layers.streaming import Snake
from engine.layers.transformer import LayerScale, reset_ropes
from engine.models.qwen3_tts.codec_decoder import CodecDecoder, ConvNeXtBlock
from engine.models.qwen3_tts.config import Qwen3TTSConfig, read_config
from engine.models.qwen3_tts.model import Qwen3TTS
from engine.models.qwen3_tts.talker import Talker
from engine.text.tokenizer import TextTokenizer
from engine.weights.loader import uninitialized
from tests.fakes import checkpoints

STACK = dict(layers=28, heads=16, kv_heads=8, head_dim=128)
RELEASED: dict[str, Any] = {
    "predictor": dict(hidden=1024, intermediate=3072, layers=5, heads=16, kv_heads=8, head_dim=128),
    "codec": dict(hidden=512, intermediate=1024, layers=8, heads=16, kv_heads=16, head_dim=64),
    "codec_sizes": dict(codebook_dim=512, latent_dim=1024, decoder_dim=1536, sliding_window=72),
    "rates": ([8, 5, 4, 3], [2, 2]),
    "books": 16,
    "codes": 2048,
    # With it a shape has the tokenizer of ``write_tokenizer``, so that prompts have released lengths.
    "text_vocab": 151_936,
}
MAX_TOKENS = 32_000
ROOT = Path(__file__).parents[1]
SHAPES: dict[str, dict[str, Any]] = {
    "1.7b": RELEASED | {"talker": STACK | dict(hidden=2048, intermediate=6144, text_hidden=2048), "size": "1b7"},
    "0.6b": RELEASED | {"talker": STACK | dict(hidden=1024, intermediate=3072, text_hidden=2048), "size": "0b6"},
    "tiny": checkpoints.TINY,
    "tiny_projected": checkpoints.TINY_PROJECTED,
}


def write_tokenizer(folder: Path) -> dict[str, int]:
    """Write a tokenizer that makes about as many tokens of English text as a released one.

    It has all words of the repository's pages and of the training grammar, some 17,000 tokens. The texts of the
    benchmarks are not among them. Those of ``realtime/bench/corpus.txt`` get 4.0 characters a token, and those of
    ``voice_sentences.txt`` 3.8. Takes half a second.
    """
    paths = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "training" / "corpus").glob("*.txt")]
    texts = [path.read_text(encoding="utf-8") for path in sorted(paths)]
    return checkpoints.write_tokenizer(folder, MAX_TOKENS, texts)


def write_files(folder: Path, shape: str) -> Qwen3TTSConfig:
    """Write all files except the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    text_vocab = SHAPES[shape].get("text_vocab")
    ids = write_tokenizer(folder) if text_vocab else checkpoints.write_tokenizer(folder)
    checkpoints.write_settings(folder, SHAPES[shape], ids, "custom_voice")
    path = folder / "config.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    if text_vocab:
        values["talker_config"]["text_vocab_size"] = text_vocab
        values["talker_config"]["max_position_embeddings"] = 32_768
    path.write_text(json.dumps(values), encoding="utf-8")
    return read_config(folder)


@torch.no_grad()
def randomize(module: nn.Module) -> None:
    """Initialize weights with unit gain, so that activations neither saturate nor vanish."""
    for child in module.modules():
        for name, value in child.named_parameters(recurse=False):
            if isinstance(child, nn.Embedding):
                value.normal_()
            elif value.dim() > 1:
                value.normal_(0, 0.7 * value[0].numel() ** -0.5)
            elif isinstance(child, LayerScale | ConvNeXtBlock):
                value.normal_(0.3, 0.05)
            elif isinstance(child, Snake):
                value.normal_(0, 0.1)
            else:
                value.normal_(float(name == "weight"), 0.05)
        for name, value in child.named_buffers(recurse=False):
            if name == "embedding_sum":
                value.normal_()
            elif name == "cluster_usage":
                value.fill_(1.0)


def empty_modules(config: Qwen3TTSConfig, dtype: torch.dtype, device: torch.device) -> tuple[Talker, CodecDecoder]:
    torch.manual_seed(0)
    with torch.device(device), uninitialized():
        talker, codec = Talker(config.talker).to(dtype), CodecDecoder(config.codec)
    for module in (talker, codec):
        randomize(module)
        reset_ropes(module, device)
        module.eval().requires_grad_(False)
    return talker, codec


@torch.inference_mode()
def build(folder: Path, shape: str, dtype: torch.dtype, device: torch.device) -> tuple[Qwen3TTS, CodecDecoder]:
    """Build the modules of both stages without files."""
    config = write_files(folder, shape)
    talker, codec = empty_modules(config, dtype, device)
    talker.fuse()
    codec.fuse()
    return Qwen3TTS(config, talker, TextTokenizer.from_folder(folder)), codec.to(dtype)


def write(folder: Path, shape: str, device: torch.device) -> Path:
    """Write a complete checkpoint folder."""
    config = write_files(folder, shape)
    talker, codec = empty_modules(config, torch.bfloat16, device)

    def named(module: nn.Module, prefix: str) -> dict[str, Tensor]:
        return {prefix + name: tensor.cpu().contiguous() for name, tensor in module.state_dict().items()}

    save_file(named(talker, "talker."), folder / "model.safetensors")
    save_file(named(codec, "decoder."), folder / "speech_tokenizer" / "model.safetensors")
    return folder
