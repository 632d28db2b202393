"""A CosyVoice3 folder as a ``Family``, or checked without reading a weight (spec 1)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from engine.api import CheckpointReport
from engine.config import EngineConfig
from engine.errors import CheckpointError
from engine.layers.cpu import pack_linears
from engine.layers.transformer import reset_ropes
from engine.models.base import Family
from engine.models.cosyvoice3.config import (
    BACKBONE_FOLDER,
    CosyTalkerConfig,
    CosyVoice3Config,
    FlowConfig,
    HiftConfig,
    read_config,
)
from engine.models.cosyvoice3.decode_stage import CosyDecodeStage
from engine.models.cosyvoice3.flow import Flow
from engine.models.cosyvoice3.hift import Hift
from engine.models.cosyvoice3.model import LANGUAGES, CosyVoice3
from engine.models.cosyvoice3.settings import CosyVoice3Settings
from engine.models.cosyvoice3.talker import SpeechLM
from engine.models.cosyvoice3.talker_program import make_frames
from engine.models.cosyvoice3.tokenizer import CosyTokenizer
from engine.models.cosyvoice3.voice import (
    ENCODERS,
    MISSING_ENCODER_NOTE,
    CosyVoiceEncoder,
    missing_encoders,
    read_saved_voices,
)
from engine.weights.loader import config_errors_of, uninitialized
from engine.weights.torch_pickle import Adapt, State, check_state, load_state

# Some files carry it before every name.
PREFIX = "generator."
# Gain and direction.
SPELLINGS = (("parametrizations.weight.original0", "parametrizations.weight.original1"), ("weight_g", "weight_v"))


def adapt_hift(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename and fold the vocoder's tensors. Raises ``CheckpointError`` naming the tensor."""
    found = {name.removeprefix(PREFIX): tensor for name, tensor in state.items()}
    for gain_name, direction_name in SPELLINGS:
        stems = [name.removesuffix(gain_name) for name in found if name.endswith(gain_name)]
        for stem in stems:
            if stem + direction_name not in found:
                raise CheckpointError(f"hift.pt: tensor {stem}{gain_name} stands without {stem}{direction_name}")
            gain, direction = found.pop(stem + gain_name), found.pop(stem + direction_name)
            found[f"{stem}weight"] = fold_weight_norm(f"{stem}weight", gain, direction)
    return found


def fold_weight_norm(name: str, gain: Tensor, direction: Tensor) -> Tensor:
    """gain * direction / |direction| in fp64, the length taken for each output channel."""
    if direction.dim() != 3 or gain.shape != (len(direction), 1, 1):
        shapes = f"a gain {list(gain.shape)} and a direction {list(direction.shape)}"
        raise CheckpointError(f"hift.pt: tensor {name} is {shapes}; they do not fit")
    return torch._weight_norm(direction.double(), gain.double(), 0)


TALKER_FILES = ("llm.pt", "llm.rl.pt")
FLOW_FILE, HIFT_FILE = "flow.pt", "hift.pt"
TIED_HEAD = "llm.model.lm_head.weight"


def talker_file(folder: Path, wanted: str | None) -> Path:
    """The one that is wanted, or the first that is there."""
    names = TALKER_FILES if wanted is None else (wanted,)
    for name in names:
        if (folder / name).exists():
            return folder / name
    raise CheckpointError(f"{folder} has no {' and no '.join(names)}")


def adapt_talker(state: State) -> State:
    """The text table is there once more, as a head that nothing uses."""
    return {name: tensor for name, tensor in state.items() if name != TIED_HEAD}


def tied_bytes(config: CosyTalkerConfig) -> int:
    return 8 * config.text_vocab_size * config.transformer.hidden_size


def load_talker(
    path: Path, config: CosyTalkerConfig, dtype: torch.dtype, device: torch.device, precision: str = "bf16"
) -> SpeechLM:
    with config_errors_of(path.parent), uninitialized():
        talker = SpeechLM(config)
    load_state(talker, path, dtype, device, adapt_talker, tied_bytes(config))
    reset_ropes(talker, device)
    talker.eval().requires_grad_(False).fuse()
    talker.quantize(precision, device)
    return talker


def load_flow(folder: Path, config: FlowConfig, dtype: torch.dtype, device: torch.device) -> Flow:
    """Products in ``dtype``, all else in fp32."""
    with config_errors_of(folder), uninitialized():
        flow = Flow(config)
    load_state(flow, folder / FLOW_FILE, torch.float32, device)
    flow.eval().requires_grad_(False).fuse()
    flow.to_compute(dtype)
    return flow


def load_hift(folder: Path, config: HiftConfig, device: torch.device) -> Hift:
    """In fp32, whatever else computes in, and the pitch in fp64: so it is read."""
    with config_errors_of(folder), uninitialized():
        hift = Hift(config)
    load_state(hift, folder / HIFT_FILE, torch.float64, device, adapt_hift)
    hift.eval().requires_grad_(False).fuse()
    return hift


def inspect(folder: Path) -> CheckpointReport:
    """Inspect a folder. Raises ``CheckpointError`` naming file, key or tensor."""
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


log = logging.getLogger(__name__)


def load_family(folder: Path, config: EngineConfig, device: torch.device, dtype: torch.dtype) -> Family:
    sizes, settings = read_config(folder), config.cosyvoice3
    model = load_model(folder, sizes, settings, device, dtype, config.max_cached_voices, config.precision)
    if device.type == "cpu" and config.cpu_optimizations and not config.graphs:
        pack_linears(model.talker)
    flow = load_flow(folder, sizes.flow, dtype, device)
    hift = load_hift(folder, sizes.hift, device)

    def make_stage() -> CosyDecodeStage:
        stage = CosyDecodeStage(flow, hift, config.max_running_requests, settings, device, config.max_cached_voices)
        if not config.lazy_graph_capture:
            stage.record()
        return stage

    threads = settings.encoder.num_threads
    encoder = load_encoder(folder, sizes, threads) if config.voice_encoders else None
    return Family(model, sizes, partial(make_frames, model), make_stage=make_stage, encode_voice=encoder)


def load_model(
    folder: Path,
    sizes: CosyVoice3Config,
    settings: CosyVoice3Settings,
    device: torch.device,
    dtype: torch.dtype,
    max_voices: int = 32,
    precision: str = "bf16",
) -> CosyVoice3:
    """The talker stage. Raises ``CheckpointError`` naming file, key or tensor."""
    rows = sizes.talker.text_vocab_size
    tokenizer = CosyTokenizer.from_folder(folder / BACKBONE_FOLDER, rows, settings.talker.parse_control_tags)
    trims = settings.flow.trim_prompts
    named = read_saved_voices(folder, sizes.flow, tokenizer, trims)
    path = talker_file(folder, settings.talker.weights)
    log.info("the talker is %s", path.name)
    talker = load_talker(path, sizes.talker, dtype, device, precision)
    return CosyVoice3(
        sizes, talker, tokenizer, settings.talker, named=named, max_voices=max_voices, trims_prompts=trims
    )


def load_encoder(folder: Path, sizes: CosyVoice3Config, num_threads: int = 2) -> CosyVoiceEncoder | None:
    """None, and a word in the log about what works then, where a file is missing."""
    missing = missing_encoders(folder)
    if missing:
        log.warning("%s has no %s: %s", folder, " and no ".join(missing), MISSING_ENCODER_NOTE)
        return None
    return CosyVoiceEncoder(folder, sizes, num_threads)
