"""A checkpoint folder, by its family, on a device as a maker of engines; or checked without loading it."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor

from engine.api import CheckpointReport, ClonedVoice, EngineInfo, ReferenceAudio
from engine.config import MIN_REFERENCE_S, EngineConfig
from engine.errors import CheckpointError, InvalidRequest
from engine.memory.block_pool import PrefixCache
from engine.memory.budget import budget_errors, limit_memory
from engine.memory.kv_cache import PagedKV
from engine.models.base import AudioSpec, DecodeStage, Family, FrameContext, FrameProgramProtocol, SpeechModel
from engine.models.config_file import read_json
from engine.program.capture import CAPTURE_LOCK, GraphSet
from engine.program.decode_executor import FRAME_PRIORITY, create_decode_executor, decode_priority
from engine.runtime.call_planner import DECODE_BATCHING_SLACK_S
from engine.runtime.codec_runners import EagerCodec, GraphCodec, make_eager_stage
from engine.runtime.codec_stage import CodecStage
from engine.runtime.engine import MAX_CACHED_PREFIX_POSITIONS, MAX_WARM_UP_S, Engine, wanted_blocks
from engine.runtime.runner import GraphRunner
from engine.runtime.workspace import ENCODER_BYTES, MIN_POSITIONS, fit_blocks
from engine.weights.fingerprint import fingerprint_checkpoint
from engine.weights.hub import resolve_folder
from engine.weights.quantize import FP8, LARGEST

log = logging.getLogger(__name__)

# Of the GPUs that convert fp8 (Ada, Hopper and later).
MIN_FP8_CAPABILITY = (8, 9)
# Two spinning OpenMP threads beside a busy neighbour took a step from 43 to 2,270 ms; one thread 73.
CPU_THREADS = 1
# Its own ``config.json`` is empty.
COSYVOICE3_FILE = "cosyvoice3.yaml"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# Rows and slots of Qwen3-TTS by the free memory of a CUDA device in units of 2^30 bytes, beyond what weights, graphs
# and their workspace use. More rows than the maximum make steps longer and hardly more speech.
FIXED_GB = 12
SLOTS_PER_GB = 16
SLOTS = (64, 1_536)
ROWS = (32, 384)
# Options that decide how much memory an engine holds beside its cache.
MEMORY_OPTIONS = ("precision", "max_running_requests", "max_batch_size", "max_prefill_positions", "max_cached_voices")
# Prompt positions in a step of Qwen3-TTS: eight texts of 100 characters start together.
QWEN3_POSITIONS = 320
# The same of CosyVoice3, and from which memory on: 16 new requests start together.
COSYVOICE3_POSITIONS, COSYVOICE3_GB = 2_048, 16


class LoadedCheckpoint(NamedTuple):
    """A checkpoint in memory. Every engine made of it shares the weights."""

    info: EngineInfo
    make_engine: Callable[[], Engine]
    config: EngineConfig
    # Listens to a checked recording; takes its time, and may be called on any one thread at a time.
    encode_voice: Callable[[ReferenceAudio], ClonedVoice] | None = None
    # Of the files.
    fingerprint: str = ""


def load_family(
    folder: Path,
    config: EngineConfig,
    device: torch.device,
    dtype: torch.dtype,
    decode_device: torch.device | None = None,
) -> Family:
    """Load a folder by its family. Raises ``CheckpointError`` for an unknown one."""
    family = _family(folder)
    if family == "cosyvoice3":
        from engine.models.cosyvoice3.load import load_family as load_cosyvoice3

        return load_cosyvoice3(folder, config, device, dtype)
    from engine.models.qwen3_tts.load import load_family as load_qwen3_tts

    return load_qwen3_tts(folder, config, device, dtype, decode_device)


def inspect_model(folder: Path) -> CheckpointReport:
    """Inspect a folder: all of it is checked and nothing loaded. Raises ``CheckpointError``."""
    family = _family(folder)
    if family == "cosyvoice3":
        from engine.models.cosyvoice3.load import inspect as inspect_cosyvoice3

        return inspect_cosyvoice3(folder)
    from engine.models.qwen3_tts.load import inspect as inspect_qwen3_tts

    return inspect_qwen3_tts(folder)


def _family(folder: Path) -> str:
    if (folder / COSYVOICE3_FILE).exists():
        return "cosyvoice3"
    found = read_json(folder / "config.json").values.get("model_type")
    if found != "qwen3_tts":
        known = f"qwen3_tts, and cosyvoice3 by its {COSYVOICE3_FILE}"
        raise CheckpointError(f"{folder / 'config.json'}: model_type is {found!r}; known: {known}")
    return "qwen3_tts"


def choose_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return validate_device(name, "device", "auto, cpu, cuda, cuda:N")


def validate_device(name: str, setting: str, known: str) -> torch.device:
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise InvalidRequest(f"{setting} is {name!r}; known: {known}", setting)
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InvalidRequest(
            f"{setting} is {name!r}, but {torch.cuda.device_count()} CUDA devices can be used", setting
        )
    return device


def check_decode_device(config: EngineConfig, family: Family, device: torch.device) -> None:
    """Check where to decode. Raises ``InvalidRequest`` where decoding cannot be elsewhere."""
    if config.decode_device is None:
        return
    if family.codec is None:
        raise InvalidRequest(
            f"decode_device is {config.decode_device!r}; {family.model.name} decodes where it speaks", "decode_device"
        )
    if not wants_graphs(config, device):
        raise InvalidRequest(f"decode_device is {config.decode_device!r}; it needs graphs = true", "decode_device")


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if name not in DTYPES:
        raise InvalidRequest(f"dtype is {name!r}; known: auto, {', '.join(DTYPES)}", "dtype")
    return DTYPES[name]


def check_precision(config: EngineConfig, device: torch.device) -> None:
    """Raise ``InvalidRequest`` where the device does not multiply weights of that precision."""
    if config.precision == "bf16":
        return
    if device.type != "cuda":
        raise InvalidRequest(f"precision is {config.precision!r}; on {device.type} it must be bf16", "precision")
    capability = torch.cuda.get_device_capability(device)
    if config.precision == "fp8" and capability < MIN_FP8_CAPABILITY:
        found, least = (".".join(map(str, pair)) for pair in (capability, MIN_FP8_CAPABILITY))
        raise InvalidRequest(
            f"precision is fp8; {device} has compute capability {found}, fp8 needs at least {least}", "precision"
        )


def size_by_memory(config: EngineConfig, family: str, free_gb: float) -> EngineConfig:
    """Return the configuration with the prompt positions of a step on a CUDA device, and for Qwen3-TTS with the rows
    and slots that a device with this free memory usually holds.
    """
    # With fixed rows each prefill is padded to all positions.
    if "max_prefill_positions" in config.sizes_by_memory and not config.fixed_batch_rows:
        if family == "qwen3_tts":
            config = msgspec.structs.replace(config, max_prefill_positions=QWEN3_POSITIONS)
        elif free_gb >= COSYVOICE3_GB:
            config = msgspec.structs.replace(config, max_prefill_positions=COSYVOICE3_POSITIONS)
    if family != "qwen3_tts":
        return config
    num_slots, num_rows = config.max_running_requests, config.max_batch_size
    if "max_running_requests" in config.sizes_by_memory:
        num_slots = round(min(max(SLOTS_PER_GB * (free_gb - FIXED_GB), SLOTS[0]), SLOTS[1]))
    if "max_batch_size" in config.sizes_by_memory:
        num_rows = min(max(num_slots // 3, ROWS[0]), ROWS[1], config.fixed_batch_rows or ROWS[1])
    return msgspec.structs.replace(config, max_running_requests=num_slots, max_batch_size=num_rows)


def wants_graphs(config: EngineConfig, device: torch.device) -> bool:
    return device.type == "cuda" if config.graphs is None else config.graphs


@torch.inference_mode()
def build_engine(family: Family, config: EngineConfig, dtype: torch.dtype, device: torch.device) -> Engine:
    """An engine over the family's stages, not yet warmed up."""
    if not wants_graphs(config, device):
        return Engine(family.model, make_stage(family, config), config, dtype=dtype, device=device)
    dtype = cache_dtype(family.model, config, dtype)
    ring, stage = make_graph_stage(family, config, device)
    if config.memory_gb is not None and config.num_blocks is None and config.kv_memory_mb is None:
        config = fit_cache(family, config, ring, stage, dtype, device)

    def make_runner(kv: PagedKV, prefixes: PrefixCache) -> GraphRunner:
        program = family.make_frames(FrameContext(kv, config, ring))
        priority = FRAME_PRIORITY if config.graph_priorities and family.codec is not None else 0
        runs, num_slots = (program.run_frame, program.run_prefill), config.max_running_requests
        frames, prefills = (GraphSet(run, device, priority_of=lambda *key: priority) for run in runs)
        return GraphRunner(family.model, kv, prefixes, config, program, frames, prefills, num_slots)

    return Engine(family.model, stage, config, make_runner, dtype=dtype, device=device)


def cache_dtype(model: SpeechModel, config: EngineConfig, dtype: torch.dtype) -> torch.dtype:
    """The dtype of keys and values beside graphs: fp8 with weights in fp8, if all keys are within its range."""
    if config.precision != "fp8":
        return dtype
    largest = model.kv_shape.largest_key
    if largest <= LARGEST:
        return FP8
    log.info("keys of up to %.0f exceed the range of fp8: the cache stays plain", largest)
    return dtype


def fit_cache(
    family: Family, config: EngineConfig, ring: Tensor | None, stage: DecodeStage, dtype: torch.dtype,
    device: torch.device,
) -> EngineConfig:  # fmt: skip
    """The configuration with as many KV blocks as ``memory_gb`` leaves."""
    codec = None
    if config.decode_device is None and isinstance(stage, CodecStage) and isinstance(stage.codec, GraphCodec):
        codec = stage.codec

    def make_frames(kv: PagedKV) -> FrameProgramProtocol:
        return family.make_frames(FrameContext(kv, config, ring))

    wanted, num_spare = wanted_blocks(family.model, config), spare_bytes(family, config, codec, dtype)
    num_blocks = fit_blocks(family.model, make_frames, codec, config, dtype, device, wanted, num_spare)
    return msgspec.structs.replace(config, num_blocks=num_blocks)


def spare_bytes(family: Family, config: EngineConfig, codec: GraphCodec | None, dtype: torch.dtype) -> int:
    """Bytes allocated later beside the cache: copies of prefixes, states of cloned voices, recordings to encode."""
    position_bytes = PagedKV.block_bytes(family.model.kv_shape, config.block_size, dtype) // config.block_size
    num_spare = MAX_CACHED_PREFIX_POSITIONS * position_bytes
    if codec is not None and family.model.capabilities.can_clone:
        num_spare += codec.max_reference_bytes
    if family.encode_voice is not None and family.codec is not None:
        num_spare += ENCODER_BYTES
    return num_spare


def make_stage(family: Family, config: EngineConfig) -> DecodeStage:
    """The decode stage without graphs of the engine's own, or the family's."""
    if family.make_stage is not None:
        return family.make_stage()
    assert family.codec is not None
    return make_eager_stage(
        family.codec.module, config.max_running_requests, DECODE_BATCHING_SLACK_S, config.max_cached_voices
    )


def make_graph_stage(family: Family, config: EngineConfig, device: torch.device) -> tuple[Tensor | None, DecodeStage]:
    """The decode stage beside a talker over graphs, and the ring of codes between them if it is the engine's own."""
    if family.codec is None:
        return None, make_stage(family, config)
    codec = family.codec
    ring = codec.new_ring(config, device)
    executor = create_decode_executor(ring, codec.device, config.decode_device is not None)
    program = codec.make_program(config, executor.ring)
    priority_of = decode_priority(config.max_batch_size, config.graph_priorities)
    graphs, num_slots = GraphSet(program.run, codec.device, priority_of=priority_of), config.max_running_requests
    runner = GraphCodec(program, graphs, executor, num_slots, config.max_cached_voices)
    return ring, CodecStage(runner, num_slots, family.audio.sample_rate, DECODE_BATCHING_SLACK_S)


def load_engine(
    folder: Path, config: EngineConfig, device_name: str, dtype_name: str, is_embedded: bool
) -> LoadedCheckpoint:
    """Load a checkpoint. Raises ``CheckpointError``; ``InvalidRequest`` for an unavailable device or dtype."""
    device = choose_device(device_name)
    dtype = choose_dtype(dtype_name, device)
    check_precision(config, device)
    limit_memory(config.memory_gb, device)
    if device.type == "cpu":
        torch.set_num_threads(CPU_THREADS)
    decode_device = None
    if config.decode_device is not None:
        decode_device = validate_device(config.decode_device, "decode_device", "cpu, cuda, cuda:N")
    folder = resolve_folder(folder)
    if device.type == "cuda":
        free_gb = torch.cuda.mem_get_info(device)[0] / 2**30
        config = size_by_memory(config, _family(folder), min(free_gb, config.memory_gb or free_gb))
    with budget_errors(config, "the weights", "precision"):
        family = load_family(folder, config, device, dtype, decode_device)
    check_decode_device(config, family, device)

    def make_engine() -> Engine:
        if device.index:  # kernels go to the device that is current on the thread that will step
            torch.cuda.set_device(device)
        with budget_errors(config, "slots, cache and graphs beside the weights", *MEMORY_OPTIONS):
            engine = build_engine(family, config, dtype, device)
            codec = getattr(engine.stage, "codec", None)
            if isinstance(codec, EagerCodec) and not config.lazy_graph_capture:
                codec.warm_up(MAX_WARM_UP_S)
            engine.warm_up()
        return engine

    info = build_engine_info(family.model, family.audio, config, normalize_text=is_embedded)
    fingerprint = fingerprint_checkpoint(folder)
    if family.encode_voice is None:
        return LoadedCheckpoint(info, make_engine, config, fingerprint=fingerprint)
    info = msgspec.structs.replace(info, can_encode=True)
    return LoadedCheckpoint(info, make_engine, config, encode_exclusively(family.encode_voice), fingerprint)


def encode_exclusively(encode: Callable[[ReferenceAudio], ClonedVoice]) -> Callable[[ReferenceAudio], ClonedVoice]:
    """Encode only while no graph is captured."""

    def encode_voice(sample: ReferenceAudio) -> ClonedVoice:
        with CAPTURE_LOCK:
            return encode(sample)

    return encode_voice


def text_tokens_within(positions: int, config: EngineConfig) -> int:
    """Return the largest number that leaves room for all their frames."""
    beside_all_frames = positions - config.max_frames
    beside_their_own = (positions - config.min_frame_cap) // (1 + config.frames_per_text_token)
    return max(beside_all_frames, beside_their_own, 1)


def build_engine_info(model: SpeechModel, audio: AudioSpec, config: EngineConfig, normalize_text: bool) -> EngineInfo:
    positions = model.max_positions
    if config.num_blocks is not None:
        positions = min(positions, config.num_blocks * config.block_size)
    elif config.memory_gb is not None:  # the cache is fitted later, and holds at least these
        positions = min(positions, MIN_POSITIONS)
    abilities = asdict(model.capabilities)
    max_text_tokens = abilities.pop("max_text_tokens") or text_tokens_within(positions, config)
    return EngineInfo(
        model=model.name,
        sample_rate=audio.sample_rate,
        frame_samples=audio.frame_samples,
        voices=model.voices,
        languages=model.languages,
        max_text_tokens=min(positions, config.max_frames, max_text_tokens),
        normalize_text=normalize_text,
        min_sample_s=MIN_REFERENCE_S,
        max_sample_s=config.max_reference_s,
        **abilities,
    )
