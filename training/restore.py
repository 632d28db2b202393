"""Weights of a run from what the repository keeps: talker and decoder of the shipped voice, and its encoder.

python -m training.restore OUT
python -m training.restore OUT --keep   # the other way: what the shipped voice lacks of the run in OUT
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from training.checkpoints import load, save_in_bytes
from training.encoder import Encoder
from training.settings import FULL_BAND

VOICE = Path(__file__).parents[1] / "engine" / "voices" / "embedded"
STATE = Path(__file__).with_name("state")
OF_ENCODER = ("encoder.safetensors", "phone_head.safetensors")


def restore(voice: Path, state: Path, out: Path) -> None:
    """Write what ``--resume`` and ``--codec`` read; the encoder where ``state`` has it."""
    out.mkdir(parents=True, exist_ok=True)
    save_file(_read(voice, "talker."), out / "talker.safetensors")
    save_file(_read(voice / "speech_tokenizer", "decoder."), out / "decoder.safetensors")
    for name in OF_ENCODER:
        if (state / name).exists():
            shutil.copyfile(state / name, out / name)


def keep(run: Path, state: Path) -> None:
    """Write the encoder in one byte a weight: its 10 MB in fp16 exceed what the repository may hold."""
    encoder = Encoder(FULL_BAND.sizes)
    load(encoder, run / "encoder.safetensors")
    save_in_bytes(encoder, state / "encoder.safetensors")
    shutil.copyfile(run / "phone_head.safetensors", state / "phone_head.safetensors")


def _read(folder: Path, prefix: str) -> dict[str, Tensor]:
    shards = [load_file(path) for path in sorted(folder.glob("model*.safetensors"))]
    return {name.removeprefix(prefix): tensor for shard in shards for name, tensor in shard.items()}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description="Restore a run's weights from the repository.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--keep", action="store_true", help="write OUT's encoder to training/state")
    options = parser.parse_args(arguments)
    if options.keep:
        keep(options.out, STATE)
    else:
        restore(VOICE, STATE, options.out)


if __name__ == "__main__":
    main(sys.argv[1:])
