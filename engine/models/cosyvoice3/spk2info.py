"""``spk2info.pt``: voices that came with a checkpoint or were kept beside it, by name (spec 1)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.errors import CheckpointError
from engine.models.cosyvoice3.config import FlowConfig
from engine.models.cosyvoice3.tokenizer import CosyTokenizer
from engine.models.cosyvoice3.voice_prompt import VoicePrompt, make_prompt, transcript_text
from engine.weights.torch_pickle import check_size, read_object

FILE = "spk2info.pt"
MAX_BYTES = 256 * 2**20
MAX_VOICES = 1_000
MAX_NAME_CHARS = 200
FIELDS = ("flow_prompt_speech_token", "prompt_speech_feat", "flow_embedding")
WHOLE_NUMBERS = (torch.int16, torch.int32, torch.int64)
NUMBERS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def read_saved_voices(
    folder: Path, config: FlowConfig, tokenizer: CosyTokenizer, trims: bool
) -> dict[str, VoicePrompt]:
    """By name in lower case; none where there is no file. Raises ``CheckpointError`` naming voice and field."""
    path = folder / FILE
    if not path.exists():
        return {}
    saved = read_object(path, MAX_BYTES)
    if not isinstance(saved, dict) or len(saved) > MAX_VOICES:
        raise CheckpointError(f"{path}: expected at most {MAX_VOICES} voices by name")
    if any(len(str(name)) > MAX_NAME_CHARS for name in saved) or len({str(n).lower() for n in saved}) < len(saved):
        raise CheckpointError(f"{path}: two voices share a name, or one has more than {MAX_NAME_CHARS} characters")
    return {
        str(name).lower(): _voice(f"{path}: {name}", entry, config, tokenizer, trims) for name, entry in saved.items()
    }


def _voice(where: str, entry: Any, config: FlowConfig, tokenizer: CosyTokenizer, trims: bool) -> VoicePrompt:
    if not isinstance(entry, Mapping):
        raise CheckpointError(f"{where} is {type(entry).__name__}, expected a mapping")
    tokens, mel, embedding = (_tensor(where, entry, field) for field in FIELDS)
    tokens, embedding = tokens.flatten(), embedding.flatten()
    mel = mel.reshape(-1, mel.shape[-1]) if mel.dim() > 1 else mel
    count = min(len(tokens), len(mel) // config.token_mel_ratio)
    wanted = {
        "flow_prompt_speech_token": tokens.dtype in WHOLE_NUMBERS and count > 0,
        "prompt_speech_feat": mel.dim() == 2 and mel.shape[-1] == config.dit.mel_bins and mel.dtype in NUMBERS,
        "flow_embedding": len(embedding) == config.spk_embed_size and embedding.dtype in NUMBERS,
    }
    if bad := next((field for field, fits in wanted.items() if not fits), None):
        raise CheckpointError(f"{where}: {bad} has shape {list(entry[bad].shape)} and type {entry[bad].dtype}")
    ids = tokens[:count].tolist()
    if not all(0 <= i < config.vocab_size for i in ids):
        raise CheckpointError(f"{where}: flow_prompt_speech_token must lie in 0..{config.vocab_size - 1}")
    if not (torch.isfinite(mel).all() and torch.isfinite(embedding).all()):
        raise CheckpointError(f"{where}: holds numbers that are not finite")
    transcript = _transcript(where, entry, tokenizer)
    mel = mel[: config.token_mel_ratio * count]
    return make_prompt(where.encode(), ids, mel, embedding, transcript, trims)


def _tensor(where: str, entry: Mapping[str, Any], field: str) -> Tensor:
    value = entry.get(field)
    if not isinstance(value, Tensor) or value.layout is not torch.strided or value.is_nested:
        raise CheckpointError(f"{where}: {field} is {type(value).__name__}, expected a tensor")
    check_size(value, f"{where}: {field}", MAX_BYTES)
    if value.dim() == 0 or value.numel() == 0:
        raise CheckpointError(f"{where}: {field} has shape {list(value.shape)}, and so holds nothing")
    return value


def _transcript(where: str, entry: Mapping[str, Any], tokenizer: CosyTokenizer) -> list[int]:
    """Ids of what is said: kept as ids, with or without the instruction in front, or as text; or not at all."""
    value = entry.get("prompt_text", "")
    if isinstance(value, str):
        return tokenizer.encode_text(transcript_text(value))
    if not isinstance(value, Tensor) or value.dtype not in WHOLE_NUMBERS:
        raise CheckpointError(f"{where}: prompt_text is {type(value).__name__}, expected ids or text")
    check_size(value, f"{where}: prompt_text", MAX_BYTES)
    ids = [int(i) for i in value.flatten().tolist()]
    if bad := next((i for i in ids if not 0 <= i <= tokenizer.last_id), None):
        raise CheckpointError(f"{where}: prompt_text holds {bad}; ids lie in 0..{tokenizer.last_id}")
    ends = [place for place, i in enumerate(ids) if i == tokenizer.end_of_prompt]
    return ids[ends[-1] + 1 :] if ends else ids
