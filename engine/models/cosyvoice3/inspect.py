"""A folder held against its own configuration, file by file and tensor by tensor, without reading a weight."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from engine.api import CheckpointReport
from engine.models.cosyvoice3.config import CosyVoice3Config
from engine.models.cosyvoice3.flow import Flow
from engine.models.cosyvoice3.hift import Hift
from engine.models.cosyvoice3.hift_weights import adapt as adapt_hift
from engine.models.cosyvoice3.load_weights import FLOW_FILE, HIFT_FILE, adapt_talker, talker_file, tied_bytes
from engine.models.cosyvoice3.model import LANGUAGES
from engine.models.cosyvoice3.read_config import BACKBONE_FOLDER, read_config
from engine.models.cosyvoice3.speech_lm import SpeechLM
from engine.models.cosyvoice3.spk2info import read_saved_voices
from engine.models.cosyvoice3.tokenizer import CosyTokenizer
from engine.models.cosyvoice3.voice_encoder import ENCODERS, MISSING_ENCODER_NOTE, missing_encoders
from engine.weights.loader import config_errors_of
from engine.weights.torch_pickle import Adapt, check_state


def inspect(folder: Path) -> CheckpointReport:
    """Raises ``CheckpointError`` naming file, key or tensor."""
    config = read_config(folder)
    tokenizer = CosyTokenizer.from_folder(folder / BACKBONE_FOLDER, config.talker.text_vocab_size)
    voices = read_saved_voices(folder, config.flow, tokenizer, trims=False)
    missing = missing_encoders(folder)
    notes = (f"no {' and no '.join(missing)}: {MISSING_ENCODER_NOTE}",) if missing else ()
    return CheckpointReport(
        model="cosyvoice3",
        task="base",
        voices=tuple(voices),
        languages=LANGUAGES,
        takes_instruct=True,
        megabytes=_megabytes(folder, config),
        notes=notes,
    )


def _megabytes(folder: Path, config: CosyVoice3Config) -> dict[str, float]:
    talker = talker_file(folder, None)
    found = {
        f"talker ({talker.name})": _bytes(
            folder, lambda: SpeechLM(config.talker), talker.name, adapt_talker, tied_bytes(config.talker)
        ),
        "flow": _bytes(folder, lambda: Flow(config.flow), FLOW_FILE),
        "vocoder": _bytes(folder, lambda: Hift(config.hift), HIFT_FILE, adapt_hift),
    }
    found |= {name: (folder / name).stat().st_size for name in ENCODERS if (folder / name).exists()}
    return {name: round(num_bytes / 1e6, 1) for name, num_bytes in found.items()}


def _bytes(
    folder: Path, make: Callable[[], nn.Module], name: str, adapt: Adapt | None = None, num_more: int = 0
) -> int:
    """Shapes alone: no memory stands behind the module."""
    with config_errors_of(folder), torch.device("meta"):
        module = make()
    state = check_state(module, folder / name, adapt, num_more)
    return sum(tensor.nbytes for tensor in state.values())
