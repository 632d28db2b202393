"""Every family of models as a table: what a law needs to run on each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.fakes.checkpoints import TINY, write_checkpoint
from tests.fakes.checksum_model import ChecksumFamily
from tests.fakes.cosyvoice3_checkpoint import write_cosyvoice3
from tests.fakes.cosyvoice3_checksum import CosyVoice3Family
from tests.fakes.cosyvoice3_voices import write_saved_voices
from tests.fakes.cosyvoice_checksum import CosyVoiceChecksumFamily
from tests.fakes.qwen_checksum import QwenChecksumFamily


class Family(NamedTuple):
    name: str
    # Fakes of its shape: a talker whose codes are a function of its inputs, and a decode stage.
    shapes: tuple[ChecksumFamily, ...]
    # A tiny checkpoint in the released layout, with random weights.
    write: Callable[[Path], Path]
    # Files that the checkpoint needs; not the one that the family is recognized by, if that is a file of its own.
    files: tuple[str, ...]
    voice: str


def write_with_voice(folder: Path) -> Path:
    write_saved_voices(write_cosyvoice3(folder), "anna")
    return folder


FAMILIES = (
    Family(
        "qwen3_tts",
        (QwenChecksumFamily(),),
        lambda folder: write_checkpoint(folder, TINY),
        (
            *("config.json", "model.safetensors", "vocab.json", "merges.txt", "tokenizer_config.json"),
            *("speech_tokenizer/config.json", "speech_tokenizer/model.safetensors"),
        ),
        "ada",
    ),
    Family(
        "cosyvoice3",
        (CosyVoiceChecksumFamily(), CosyVoice3Family()),
        write_with_voice,
        (
            "llm.pt",
            "flow.pt",
            "hift.pt",
            *(f"CosyVoice-BlankEN/{name}" for name in ("config.json", "vocab.json", "merges.txt")),
        ),
        "anna",
    ),
)
