"""Weight files: every wrong one is told by file and tensor, and nothing but the files decides the weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from engine.errors import CheckpointError
from engine.weights.loader import load_weights, uninitialized

SHAPES = {"0.weight": (3, 4), "0.bias": (3,), "1.weight": (2, 3), "1.bias": (2,)}


def tensors(prefix: str = "model.") -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {prefix + name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def new_module() -> nn.Module:
    with uninitialized():
        return nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))


def load(folder: Path, dtype: torch.dtype = torch.float32) -> nn.Module:
    module = new_module()
    load_weights(module, folder, "model.", dtype, torch.device("cpu"))
    return module


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    return str(caught.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_file(tensors() | {"other.weight": torch.ones(1)}, tmp_path / "model.safetensors")
    return tmp_path


def write(folder: Path, changed: dict[str, Tensor]) -> None:
    save_file(changed, folder / "model.safetensors")


def write_shards(folder: Path) -> None:
    named = tensors()
    (folder / "model.safetensors").unlink(missing_ok=True)
    shards = {"a.safetensors": list(named)[:2], "b.safetensors": list(named)[2:]}
    for shard, names in shards.items():
        save_file({name: named[name] for name in names}, folder / shard)
    weight_map = {name: shard for shard, names in shards.items() for name in names}
    write_index(folder, json.dumps({"weight_map": weight_map}))


def write_index(folder: Path, content: str) -> None:
    (folder / "model.safetensors").unlink(missing_ok=True)
    (folder / "model.safetensors.index.json").write_text(content, encoding="utf-8")


def check_loaded(module: nn.Module) -> None:
    for name, value in module.state_dict().items():
        assert torch.equal(value, tensors()["model." + name])


def test_weights_are_the_files_and_other_prefixes_are_not_ours(folder: Path) -> None:
    check_loaded(load(folder))


def test_shards_are_read_by_their_index(folder: Path) -> None:
    write_shards(folder)
    check_loaded(load(folder))


def test_weights_take_the_dtype_that_is_asked_for(folder: Path) -> None:
    for value in load(folder, torch.bfloat16).state_dict().values():
        assert value.dtype == torch.bfloat16


def test_a_folder_without_weights_is_no_checkpoint(tmp_path: Path) -> None:
    assert f"{tmp_path} has no model.safetensors" in refusal(tmp_path)


@pytest.mark.parametrize("keep", [0, 4, 8, 100, -1])
def test_a_truncated_file_is_named(folder: Path, keep: int) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    message = refusal(folder)
    assert str(file) in message
    assert "cannot be read" in message


def test_a_file_of_something_else_is_named(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"PK\x03\x04" * 100)
    assert "model.safetensors: cannot be read" in refusal(folder)


def test_a_missing_tensor_is_named(folder: Path) -> None:
    left = tensors()
    del left["model.1.weight"]
    write(folder, left)
    assert "1 tensors are missing, first model.1.weight" in refusal(folder)


def test_a_misshapen_tensor_is_named_with_both_shapes(folder: Path) -> None:
    write(folder, tensors() | {"model.0.weight": torch.ones(4, 3)})
    assert "tensor model.0.weight has shape [4, 3]; the config asks for [3, 4]" in refusal(folder)


def test_an_unknown_tensor_is_named(folder: Path) -> None:
    write(folder, tensors() | {"model.2.weight": torch.ones(1)})
    assert "unknown tensor model.2.weight" in refusal(folder)


def test_stored_rope_frequencies_are_not_needed(folder: Path) -> None:
    write(folder, tensors() | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)})
    check_loaded(load(folder))


def test_a_missing_shard_is_named(folder: Path) -> None:
    write_shards(folder)
    (folder / "b.safetensors").unlink()
    assert "b.safetensors" in refusal(folder)


@pytest.mark.parametrize(
    "content", ["{", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": 5}}', '{"weight_map": {"a": ["b"]}}', "7"]
)
def test_an_index_that_is_none_is_named(folder: Path, content: str) -> None:
    write_index(folder, content)
    assert "model.safetensors.index.json" in refusal(folder)


@pytest.mark.parametrize("name", ["../other.safetensors", "/tmp/x.safetensors", "sub/x.safetensors", ".."])
def test_a_shard_outside_the_folder_is_refused(folder: Path, name: str) -> None:
    write_index(folder, json.dumps({"weight_map": {"model.0.weight": name}}))
    assert repr(name) in refusal(folder)


def test_quantized_weights_are_reported(folder: Path) -> None:
    write(folder, tensors() | {"model.1.weight": torch.ones(2, 3, dtype=torch.int8)})
    assert "model.1.weight is of type I8; what is built here: F64, F32, BF16, F16" in refusal(folder)
