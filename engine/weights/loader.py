"""safetensors files into modules: every tensor named, every shape checked, nothing left over unsaid."""

from __future__ import annotations

import json
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from engine.errors import CheckpointError

INDEX_SUFFIX = ".index.json"


def weight_files(folder: Path) -> list[Path]:
    """``model.safetensors``, or the shards its index names."""
    single, index = folder / "model.safetensors", folder / f"model.safetensors{INDEX_SUFFIX}"
    if single.exists():
        return [single]
    if not index.exists():
        raise CheckpointError(f"{folder} has no model.safetensors; it is no checkpoint folder")
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, LookupError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{index}: no shard index: {error!r}") from None
    for name in names:
        if not isinstance(name, str) or name == ".." or Path(name).name != name:
            raise CheckpointError(f"{index}: a shard is called {name!r}, which is no file in the folder")
    return [folder / name for name in names]


def iterate_tensors(folder: Path, prefix: str, wanted: Container[str]) -> Iterator[tuple[str, Tensor]]:
    """Those named ``prefix`` + one of ``wanted``, the prefix taken off. Raises ``CheckpointError`` naming the file."""
    for tensors, name in _iterate_names(folder, prefix):
        if name in wanted:
            yield name, tensors.get_tensor(prefix + name)


def iterate_shapes(folder: Path, prefix: str) -> Iterator[tuple[str, list[int]]]:
    """Every tensor whose name starts with ``prefix``, the prefix taken off. Raises as ``iterate_tensors``."""
    for tensors, name in _iterate_names(folder, prefix):
        yield name, tensors.get_slice(prefix + name).get_shape()


def _iterate_names(folder: Path, prefix: str) -> Iterator[tuple[Any, str]]:
    for file in weight_files(folder):
        try:
            with safe_open(str(file), framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - safe_open is no mapping
                    if name.startswith(prefix):
                        yield tensors, name[len(prefix) :]
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file}: cannot be read: {error}") from None


class _NoInitialValues(TorchFunctionMode):
    """Random initial values are left out: the file has the real ones."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.uniform_, Tensor.normal_):
            return args[0]
        return func(*args, **(kwargs or {}))


def uninitialized() -> TorchFunctionMode:
    """Context for making a module whose weights are about to be loaded.

    The meta device would do the same and import for seconds.
    """
    return _NoInitialValues()


def check_weights(module: nn.Module, folder: Path, prefix: str, passed_over: str | None = None) -> None:
    """Hold the headers in ``folder`` against ``module``; no tensor is read.

    Raises ``CheckpointError`` naming the first unknown, misshapen or missing tensor. Unknown ones that begin with
    ``passed_over`` are fine.
    """
    expected = module.state_dict()
    found = set()
    for name, shape in iterate_shapes(folder, prefix):
        if name not in expected:
            if passed_over is None or not name.startswith(passed_over):
                raise CheckpointError(f"{folder}: unknown tensor {prefix}{name}")
        elif shape != list(expected[name].shape):
            shapes = f"{shape}; the config asks for {list(expected[name].shape)}"
            raise CheckpointError(f"{folder}: tensor {prefix}{name} has shape {shapes}")
        found.add(name)
    missing = sorted(expected.keys() - found)
    if missing:
        raise CheckpointError(f"{folder}: {len(missing)} tensors are missing, first {prefix}{missing[0]}")


def load_weights(
    module: nn.Module,
    folder: Path,
    prefix: str,
    dtype: torch.dtype,
    device: torch.device,
    passed_over: str | None = None,
) -> None:
    """Fill ``module`` from ``folder``, tensor by tensor. Raises as ``check_weights``, before anything is read."""
    check_weights(module, folder, prefix, passed_over)
    wanted = module.state_dict().keys()
    found = {name: tensor.to(device=device, dtype=dtype) for name, tensor in iterate_tensors(folder, prefix, wanted)}
    module.load_state_dict(found, assign=True)
