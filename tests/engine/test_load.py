"""From a folder to speech, and what is told when the folder, the device or a setting cannot be had."""

from __future__ import annotations

import json
import re
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec import structs

from engine.api import CheckpointError, EngineDead, FinishReason, InvalidRequest, SamplingParams, SpeechRequest
from engine.client import EngineClient
from engine.config import EngineConfig
from engine.launch import SIZES, create_engine
from engine.load import (
    build_engine,
    cache_dtype,
    check_precision,
    choose_device,
    choose_dtype,
    load_engine,
    make_graph_stage,
    size_by_memory,
    spare_bytes,
)
from engine.memory.budget import GB, budget_errors
from engine.models.base import VoiceReference
from engine.models.qwen3_tts.load import load_family
from engine.models.qwen3_tts.model import Qwen3TTS
from engine.runtime import workspace
from engine.runtime.codec_runners import GraphCodec
from engine.runtime.codec_stage import CodecStage
from engine.runtime.workspace import SPARE, STREAM_BYTES, voice_note, workspace_bytes
from engine.weights.quantize import FP8, GROUP, QuantizedLinear
from tests.engine.families import Family
from tests.engine.stream_recorder import listen
from tests.fakes.checkpoints import EMBEDDED, write_checkpoint

HELLO = SpeechRequest(
    request_id="r", text="hello world", text_closed=True, max_frames=4, sampling=SamplingParams(seed=3)
)


def local(folder: Path, **settings: object) -> EngineClient:
    usual: dict[str, object] = dict(kv_memory_mb=8, lazy_graph_capture=True)
    engine = create_engine(folder, device="cpu", process=False, **(usual | settings))
    assert isinstance(engine, EngineClient)
    return engine


def size_of(folder: Path) -> str:
    size: str = json.loads((folder / "config.json").read_text())["tts_model_size"]
    return size


async def test_both_released_shapes_load_and_speak(any_folder: Path) -> None:
    engine = local(any_folder)
    await engine.start()
    try:
        heard = await listen(engine.submit(HELLO))
        assert engine.info.model == f"qwen3-tts {size_of(any_folder)} custom_voice"
        assert [voice.name for voice in engine.info.voices] == ["ada", "bo", "dylan"]
        assert engine.info.languages == ("auto", "english", "chinese", "german")
        assert (engine.info.sample_rate, engine.info.frame_samples) == (24_000, 1_920)
    finally:
        await engine.aclose()
    assert heard.end.reason is FinishReason.LENGTH
    assert heard.pcm.shape == (4 * 1920,)
    assert 0.01 < np.abs(heard.pcm).max() <= 1


async def test_a_checkpoint_of_the_embedded_shape_speaks(tmp_path: Path) -> None:
    engine = local(write_checkpoint(tmp_path, EMBEDDED))
    await engine.start()
    try:
        heard = await listen(engine.submit(HELLO))
    finally:
        await engine.aclose()
    assert heard.pcm.shape == (4 * 1920,)


async def test_speech_of_every_family_ends_once(family: Family, family_folder: Path) -> None:
    hello = structs.replace(HELLO, voice=family.voice)
    engine = local(family_folder, kv_memory_mb=64)
    await engine.start()
    try:
        before = engine.stats()
        heard = await listen(engine.submit(hello))
        assert heard.end.reason in (FinishReason.LENGTH, FinishReason.STOP)
        assert heard.num_samples > 0
        cancelled = engine.submit(structs.replace(hello, request_id="c", text="hello world " * 9, max_frames=200))
        cancelled.cancel()
        assert (await listen(cancelled)).end.reason is FinishReason.CANCELLED
        await cancelled.released()
        after = engine.stats()
        assert (after.slots_free, after.blocks_free) == (before.slots_free, before.blocks_free)
    finally:
        await engine.aclose()


def copy_of(good: Path, folder: Path) -> Path:
    """A folder of links to the same files: each may be replaced."""
    for path in good.rglob("*"):
        if path.is_file():
            (folder / path.relative_to(good)).parent.mkdir(parents=True, exist_ok=True)
            (folder / path.relative_to(good)).symlink_to(path)
    return folder


@pytest.mark.parametrize("action", ["remove", "truncate"])
async def test_every_file_that_is_missing_or_cut_short_is_named(
    family: Family, family_folder: Path, tmp_path: Path, action: str
) -> None:
    for number, name in enumerate(family.files):
        folder = copy_of(family_folder, tmp_path / f"broken {number}")
        (folder / name).unlink()
        if action == "truncate":
            content = (family_folder / name).read_bytes()
            (folder / name).write_bytes(content[: len(content) // 2] + b"\n\xff")
        engine = local(folder)
        with pytest.raises(CheckpointError, match=re.escape(Path(name).name)):
            await engine.start()
        assert not engine.is_alive


@pytest.mark.parametrize("kind", ["nothing there", "a file", "an empty folder"])
async def test_path_without_checkpoint_is_reported(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "model"
    if kind == "a file":
        path.write_text("hello")
    if kind == "an empty folder":
        path.mkdir()
    engine = local(path)
    with pytest.raises(CheckpointError, match=r"is no checkpoint folder|is no folder|cannot be read"):
        await engine.start()
    with pytest.raises(EngineDead):
        engine.submit(HELLO)


async def test_tokenizer_of_another_model_is_reported(tiny_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder, folder)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}', encoding="utf-8")
    with pytest.raises(CheckpointError, match="tokenizer_class is 'LlamaTokenizer'"):
        await local(folder).start()


def test_invalid_setting_is_refused_before_loading(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="unknown engine setting 'max_bacth'"):
        create_engine(tmp_path, max_bacth=3)
    with pytest.raises(InvalidRequest, match="max_batch_size is 0"):
        create_engine(tmp_path, max_batch_size=0)


@pytest.mark.parametrize("name", ["tpu", "", "cpu:1", "gpu", "cudafoo", "cuda:x", "cuda:-1"])
def test_unknown_device_error_lists_known_ones(name: str) -> None:
    with pytest.raises(InvalidRequest, match="known: auto, cpu, cuda, cuda:N"):
        choose_device(name)


@pytest.mark.parametrize(("name", "num_devices"), [("cuda", 0), ("cuda:0", 0), ("cuda:2", 2)])
def test_missing_device_is_reported(name: str, num_devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_devices)
    with pytest.raises(InvalidRequest, match=f"device is '{name}', but {num_devices} CUDA devices can be used"):
        choose_device(name)


def test_unknown_precision_error_lists_known_ones() -> None:
    with pytest.raises(InvalidRequest, match="precision is 'int3'; known: bf16, fp8, int4"):
        EngineConfig(precision="int3")


@pytest.mark.parametrize("precision", ["fp8", "int4"])
def test_quantized_weights_on_cpu_are_refused(precision: str) -> None:
    check_precision(EngineConfig(), torch.device("cpu"))
    with pytest.raises(InvalidRequest, match=f"precision is '{precision}'; on cpu it must be bf16"):
        check_precision(EngineConfig(precision=precision), torch.device("cpu"))


def test_fp8_on_old_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config, device = EngineConfig(precision="fp8"), torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 6))
    with pytest.raises(InvalidRequest, match=r"capability 8\.6, fp8 needs at least 8\.9"):
        check_precision(config, device)
    check_precision(EngineConfig(precision="int4"), device)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 9))
    check_precision(config, device)


def test_fp8_quantizes_layers_of_talker_and_predictor(tiny_folder: Path) -> None:
    family = load_family(tiny_folder, EngineConfig(precision="fp8"), torch.device("cpu"), torch.float32)
    model = family.model
    assert isinstance(model, Qwen3TTS)
    predictor = model.talker.code_predictor
    for stack, has_plain in ((model.talker.model, False), (predictor.model, True)):
        layers = [layer for layer in stack.modules() if isinstance(layer, QuantizedLinear)]
        assert len(layers) == 4 * len(stack.layers)
        assert all((layer.weight.plain is not None) == has_plain for layer in layers)
    assert not isinstance(predictor.lm_head[0], QuantizedLinear)


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.float32), ("int4", torch.float32), ("fp8", FP8)])
def test_keys_and_values_beside_fp8_weights_are_fp8(precision: str, dtype: torch.dtype, tiny_folder: Path) -> None:
    config = EngineConfig(precision=precision, graphs=True, num_blocks=8, lazy_graph_capture=True)
    family = load_family(tiny_folder, config, torch.device("cpu"), torch.float32)
    engine = build_engine(family, config, torch.float32, torch.device("cpu"))
    assert engine.kv.data.dtype == dtype
    eager = structs.replace(config, graphs=False)
    assert build_engine(family, eager, torch.float32, torch.device("cpu")).kv.data.dtype == torch.float32


@pytest.mark.parametrize(("largest_weight", "dtype"), [(112.0, FP8), (112.5, torch.float32)])
def test_cache_stays_plain_where_keys_may_exceed_the_range_of_fp8(
    largest_weight: float, dtype: torch.dtype, tiny_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = EngineConfig(precision="fp8", cpu_optimizations=False)
    model = load_family(tiny_folder, config, torch.device("cpu"), torch.float32).model
    assert isinstance(model, Qwen3TTS)
    assert model.config.talker.transformer.head_dim == 16
    with torch.no_grad():
        model.talker.model.layers[1].self_attn.k_norm.weight[3] = -largest_weight
    with caplog.at_level("INFO", "engine.load"):
        assert cache_dtype(model, config, torch.float32) == dtype
    assert ("the cache stays plain" in caplog.text) == (dtype != FP8)


@pytest.mark.parametrize("task", ["base", "custom_voice"])
def test_memory_budget_counts_decoder_states_of_cloned_voices(task: str, tmp_path: Path) -> None:
    config = EngineConfig(max_cached_voices=3, max_running_requests=2, voice_encoders=False, graphs=True)
    device = torch.device("cpu")
    family = load_family(write_checkpoint(tmp_path, task=task), config, device, torch.float32)
    _, stage = make_graph_stage(family, config, device)
    assert isinstance(stage, CodecStage)
    assert isinstance(stage.codec, GraphCodec)
    frame = [0] * family.model.codes_per_step
    for number in range(5):
        stage.codec.prime(1, VoiceReference(number, [frame] * 2))
    states = [state for number in range(5) if (state := stage.codec.references.get(number)) is not None]
    assert len(states) == 3
    held = sum(tensor.nbytes for state in states for tensor in state)
    counted = spare_bytes(family, config, stage.codec, torch.float32)
    # A new state is there before an old one is evicted.
    most = held + held // 3
    assert counted - spare_bytes(family, config, None, torch.float32) == (most if task == "base" else 0)
    note = voice_note(family.model, stage.codec, config)
    assert note == (f"; max_cached_voices is 3, which takes {most / GB:.2f}" if task == "base" else "")


def test_workspace_is_measured_after_a_first_run_of_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """What first runs allocate for good counts neither with compiled kernels nor without."""
    ran: set[int] = set()
    groups = [[partial(ran.add, 3), partial(ran.add, 5)], [partial(ran.add, 2)]]

    def peak(run: partial[None], device: torch.device) -> int:
        for_good = 0 if ran == {2, 3, 5} else 1 << 40
        run()
        return (run.args[0] << 20) + for_good

    monkeypatch.setattr(workspace, "peak_bytes", peak)
    assert workspace_bytes(groups, torch.device("cpu")) == int(SPARE * ((5 + 2 + 5) << 20)) + 2 * STREAM_BYTES


@pytest.mark.parametrize(
    ("free_gb", "given", "num_slots", "num_rows"),
    [
        (6, {}, 64, 32),
        (23.6, {}, 186, 62),
        (79.2, {}, 1_075, 358),
        (139.8, {}, 1_536, 384),
        (139.8, {"max_batch_size": 768}, 1_536, 768),
        (139.8, {"max_running_requests": 300}, 300, 100),
        (139.8, {"max_running_requests": 2_000, "max_batch_size": 64}, 2_000, 64),
        (139.8, {"fixed_batch_rows": 64}, 1_536, 64),
    ],
)
def test_rows_and_slots_follow_the_free_memory_of_a_gpu(
    free_gb: float, given: dict[str, int], num_slots: int, num_rows: int
) -> None:
    config = EngineConfig(sizes_by_memory=tuple(name for name in SIZES if name not in given), **given)
    sized = size_by_memory(config, "qwen3_tts", free_gb)
    assert (sized.max_running_requests, sized.max_batch_size) == (num_slots, num_rows)


@pytest.mark.parametrize(
    ("free_gb", "given", "num_positions"), [(6, {}, 256), (16, {}, 2_048), (79.2, {"max_prefill_positions": 512}, 512)]
)
def test_prompt_positions_of_cosyvoice3_follow_the_free_memory_of_a_gpu(
    free_gb: float, given: dict[str, int], num_positions: int
) -> None:
    config = EngineConfig(sizes_by_memory=tuple(name for name in SIZES if name not in given), **given)
    wanted = structs.replace(config, max_prefill_positions=num_positions)
    assert size_by_memory(config, "cosyvoice3", free_gb) == wanted
    assert size_by_memory(EngineConfig(), "cosyvoice3", free_gb).max_prefill_positions == 256
    padded = structs.replace(config, fixed_batch_rows=64)
    assert size_by_memory(padded, "cosyvoice3", free_gb) == padded


@pytest.mark.parametrize(
    ("given", "num_positions"),
    [({}, 320), ({"max_prefill_positions": 512}, 512), ({"fixed_batch_rows": 64}, 256)],
)
def test_prompt_positions_of_qwen3_tts_hold_eight_texts(given: dict[str, int], num_positions: int) -> None:
    config = EngineConfig(sizes_by_memory=tuple(name for name in SIZES if name not in given), **given)
    assert size_by_memory(config, "qwen3_tts", 6).max_prefill_positions == num_positions


def test_int4_leaves_weights_whose_inputs_make_no_group(tiny_folder: Path) -> None:
    config = EngineConfig(precision="int4", cpu_optimizations=False)
    model = load_family(tiny_folder, config, torch.device("cpu"), torch.float32).model
    assert isinstance(model, Qwen3TTS)
    layers = [*model.talker.model.layers, *model.talker.code_predictor.model.layers]
    products = [
        product
        for layer in layers
        for product in (layer.self_attn.qkv_proj, layer.self_attn.o_proj, layer.mlp.gate_up_proj, layer.mlp.down_proj)
    ]
    assert all(isinstance(one, QuantizedLinear) == (one.weight.shape[1] % GROUP == 0) for one in products)
    assert len({isinstance(one, QuantizedLinear) for one in products}) == 2


def test_memory_budget_on_cpu_is_refused(tiny_folder: Path) -> None:
    with pytest.raises(InvalidRequest, match="memory_gb is 4; it limits a CUDA device, not cpu"):
        load_engine(tiny_folder, EngineConfig(memory_gb=4), "cpu", "float32", False)


def test_budget_too_small_names_what_to_reduce() -> None:
    config = EngineConfig(memory_gb=4, max_running_requests=48)
    with (
        pytest.raises(InvalidRequest, match=r"memory_gb is 4; .* for slots: .* precision is bf16, ") as refused,
        budget_errors(config, "slots", "precision", "max_running_requests"),
    ):
        raise torch.OutOfMemoryError
    assert (refused.value.param, str(refused.value)[-26:]) == ("memory_gb", "max_running_requests is 48")
    with pytest.raises(torch.OutOfMemoryError), budget_errors(EngineConfig(), "slots", "precision"):
        raise torch.OutOfMemoryError


@pytest.mark.parametrize("memory_gb", [0, -1, float("nan"), float("inf")])
def test_memory_budget_must_be_a_size(memory_gb: float) -> None:
    with pytest.raises(InvalidRequest, match=r"memory_gb is .*; it must be above 0"):
        EngineConfig(memory_gb=memory_gb)


def test_dtypes() -> None:
    assert choose_dtype("auto", torch.device("cpu")) is torch.float32
    assert choose_dtype("auto", torch.device("cuda")) is torch.bfloat16
    with pytest.raises(InvalidRequest, match="dtype is 'float16'; known: auto, float32, bfloat16"):
        choose_dtype("float16", torch.device("cpu"))


def test_text_limit_fits_the_block_pool(tiny_folder: Path) -> None:
    few = load_engine(tiny_folder, EngineConfig(num_blocks=40, block_size=8), "cpu", "auto", is_embedded=False)
    assert few.info.max_text_tokens == (320 - 64) // 11  # 64 frames, and a position and 10 frames for each
    usual = load_engine(tiny_folder, EngineConfig(max_frames=50), "cpu", "auto", is_embedded=False)
    assert usual.info.max_text_tokens == 50


@pytest.mark.parametrize("num_blocks", [4, 40])
def test_warming_up_with_little_memory_leaves_nothing_behind(tiny_folder: Path, num_blocks: int) -> None:
    config = EngineConfig(num_blocks=num_blocks, block_size=8, watermark_blocks=0)
    engine = load_engine(tiny_folder, config, "cpu", "auto", is_embedded=False).make_engine()
    assert not engine.requests.active
    assert not engine.requests.events
    assert not engine.has_work
    assert engine.pool.num_free == num_blocks
    assert engine.stage.slots.num_free == engine.stage.slots.num_slots
