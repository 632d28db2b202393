"""A small tokenizer in the released file format, trained on the spot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from engine.text.tokenizer import PRE_TOKEN_PATTERN

CORPUS = (
    "The quick brown fox jumps over the lazy dog. Sure, one moment: I'll look that up for you, won't I?",
    "user assistant user assistant user assistant user assistant",
    "Numbers such as 12,345.67 and codes like AB-1234 don't worry anyone; we've seen them all.",
    "今天天气很好，我们去公园散步吧。今天的天气真的很好！你们去公园吗？",
    "Привет, как дела? Сегодня хорошая погода. สวัสดีครับ วันนี้อากาศดี नमस्ते दुनिया",
    "naïve café résumé 😀👍🏽 😀😀 ===== ----- \n\n\n   \t  banana banana anaconda mississippi",
    "~banana",
)

SPECIALS = ("<|im_start|>", "<|im_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>")


def train(vocab_size: int = 700) -> tuple[dict[str, int], list[list[str]]]:
    """Vocabulary and merges of a byte-level BPE."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRE_TOKEN_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, min_frequency=1, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    vocab = model["vocab"]
    vocab.setdefault("assistant", len(vocab))
    return vocab, model["merges"]


def special_ids(num_entries: int) -> dict[str, int]:
    return {content: num_entries + place for place, content in enumerate(SPECIALS)}


def config_of(vocab: dict[str, int]) -> dict[str, Any]:
    """The keys of ``config.json`` that concern text."""
    ids = special_ids(len(vocab))
    return {
        "model_type": "qwen3_tts",
        "im_start_token_id": ids["<|im_start|>"],
        "im_end_token_id": ids["<|im_end|>"],
        "assistant_token_id": vocab["assistant"],
        "tts_pad_token_id": ids["<tts_pad>"],
        "tts_bos_token_id": ids["<tts_text_bos>"],
        "tts_eos_token_id": ids["<tts_text_eod>"],
        "talker_config": {"text_vocab_size": len(vocab) + len(ids)},
    }


def tokenizer_config_of(vocab: dict[str, int]) -> dict[str, Any]:
    added = {
        str(number): {"content": content, "special": True, "normalized": False, "lstrip": False, "rstrip": False}
        for content, number in special_ids(len(vocab)).items()
    }
    return {"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": added}


def write_tokenizer(folder: Path, vocab: dict[str, int], merges: list[list[str]]) -> None:
    """Write the three tokenizer files, as a release holds them."""
    (folder / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config_of(vocab)), encoding="utf-8")


def write_folder(folder: Path, vocab_size: int = 700) -> None:
    vocab, merges = train(vocab_size)
    write_tokenizer(folder, vocab, merges)
    (folder / "config.json").write_text(json.dumps(config_of(vocab)), encoding="utf-8")
