"""The tokenizer files of a checkpoint folder, read and held against its ``config.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import CheckpointError
from engine.text.incremental_bpe import BYTE_CHARACTERS

_TOKENIZER_CLASSES = ("Qwen2Tokenizer", "Qwen2TokenizerFast")
_SPECIAL_CONTENT = {
    "im_start_token_id": "<|im_start|>",
    "im_end_token_id": "<|im_end|>",
    "tts_pad_token_id": "<tts_pad>",
    "tts_bos_token_id": "<tts_text_bos>",
    "tts_eos_token_id": "<tts_text_eod>",
}
_ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True)
class SpecialIds:
    """Ids that frame every prompt and that text never yields (spec 3.1); from ``config.json``."""

    im_start: int
    im_end: int
    assistant: int
    tts_pad: int
    tts_bos: int
    tts_eos: int


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    vocab: dict[str, int]
    merges: list[tuple[str, str]]
    special_ids: SpecialIds
    # Rows of the text table; every id is below.
    text_vocab_size: int

    @classmethod
    def read(cls, folder: Path) -> TokenizerFiles:
        """Read the files. Raises ``CheckpointError`` naming the file and the key that is wrong."""
        config = read_json(folder / "config.json")
        vocab = read_vocab(folder / "vocab.json")
        merges = read_merges(folder / "merges.txt", vocab)
        text_vocab_size = _text_vocab_size(config)
        _check_ids("vocab.json", vocab, text_vocab_size)
        special_ids = _special_ids(config, vocab, text_vocab_size)
        _check_tokenizer_config(read_json(folder / "tokenizer_config.json"), config)
        return cls(vocab, merges, special_ids, text_vocab_size)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise CheckpointError(f"{path.name}: missing in {path.parent}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path.name}: cannot be read: {error}") from None


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path.name}: not JSON: {error}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path.name}: holds {type(content).__name__}, expected an object")
    return content


def read_vocab(path: Path) -> dict[str, int]:
    vocab = read_json(path)
    if bad := next((token for token, value in vocab.items() if type(value) is not int or not token), None):
        raise CheckpointError(f"vocab.json: {bad!r} has the id {vocab[bad]!r}, expected a whole number")
    if missing := [byte for byte, character in BYTE_CHARACTERS.items() if character not in vocab]:
        raise CheckpointError(f"vocab.json: no entry for byte 0x{missing[0]:02x}; not a byte-level vocabulary")
    if len(set(vocab.values())) != len(vocab):
        raise CheckpointError("vocab.json: two entries share one id")
    return vocab


def read_merges(path: Path, vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    merges = []
    for number, line in enumerate(_read_text(path).split("\n"), start=1):
        if not line.strip() or (number == 1 and line.startswith("#version")):
            continue
        parts = line.rstrip("\r").split(" ")
        if len(parts) != 2 or not all(token in vocab for token in (*parts, "".join(parts))):
            raise CheckpointError(f"merges.txt: line {number} does not join two entries of vocab.json to a third")
        merges.append((parts[0], parts[1]))
    return merges


def _text_vocab_size(config: Mapping[str, Any]) -> int:
    talker = config.get("talker_config")
    size = talker.get("text_vocab_size") if isinstance(talker, dict) else None
    if type(size) is not int or size < 1:
        raise CheckpointError(f"config.json: talker_config.text_vocab_size is {size!r}, expected a whole number")
    return size


def _check_ids(name: str, ids: Mapping[str, int], text_vocab_size: int) -> None:
    for key, value in ids.items():
        if not 0 <= value < text_vocab_size:
            raise CheckpointError(f"{name}: {key!r} has the id {value}, outside the text table of {text_vocab_size}")


def _special_ids(config: Mapping[str, Any], vocab: Mapping[str, int], text_vocab_size: int) -> SpecialIds:
    keys = [*_SPECIAL_CONTENT, "assistant_token_id"]
    ids: dict[str, Any] = {key: config.get(key) for key in keys}
    if bad := next((key for key in keys if type(ids[key]) is not int), None):
        raise CheckpointError(f"config.json: {bad} is {ids[bad]!r}, expected a whole number")
    _check_ids("config.json", ids, text_vocab_size)
    if vocab.get(_ASSISTANT) != ids["assistant_token_id"]:
        raise CheckpointError(
            f"config.json: assistant_token_id is {ids['assistant_token_id']}, "
            f"but vocab.json gives {vocab.get(_ASSISTANT)} to {_ASSISTANT!r}"
        )
    return SpecialIds(**{key.removesuffix("_token_id"): ids[key] for key in keys})


def _check_tokenizer_config(tokenizer_config: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    found = tokenizer_config.get("tokenizer_class", _TOKENIZER_CLASSES[0])
    if found not in _TOKENIZER_CLASSES:
        raise CheckpointError(f"tokenizer_config.json: tokenizer_class is {found!r}, expected {_TOKENIZER_CLASSES[0]}")
    added = tokenizer_config.get("added_tokens_decoder", {})
    for key, content in _SPECIAL_CONTENT.items():
        entry = added.get(str(config[key]), {"content": content}) if isinstance(added, dict) else None
        if not isinstance(entry, dict) or entry.get("content") != content:
            raise CheckpointError(
                f"tokenizer_config.json: added_tokens_decoder.{config[key]} is not {content!r}, "
                f"which config.json's {key} expects"
            )
