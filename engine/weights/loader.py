"""safetensors files into modules: every tensor named, every shape checked, nothing left over unsaid."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from engine.errors import CheckpointError

INDEX_SUFFIX = ".index.json"
# Quantized weights would need their scales.
VALUE_BYTES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2}
DERIVED_SUFFIX = "rotary_emb.inv_freq"  # some files hold it; it is computed from the configuration
LOG_EVERY_BYTES = 256 * 2**20

log = logging.getLogger(__name__)


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


def iterate_shapes(folder: Path, prefix: str) -> Iterator[tuple[str, list[int], str]]:
    """Name, shape and type of every tensor named ``prefix`` + something. Raises as ``iterate_tensors``."""
    for tensors, name in _iterate_names(folder, prefix):
        entry = tensors.get_slice(prefix + name)
        yield name, entry.get_shape(), entry.get_dtype()


def _iterate_names(folder: Path, prefix: str) -> Iterator[tuple[Any, str]]:
    for file in weight_files(folder):
        try:
            with safe_open(str(file), framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - safe_open is no mapping
                    if name.startswith(prefix):
                        yield tensors, name[len(prefix) :]
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file}: cannot be read: {error}") from None


class LoadProgress:
    """Log the progress of reading ``num_bytes``, in steps; less than a step is not logged."""

    def __init__(self, what: str, num_bytes: int) -> None:
        self.what, self.num_bytes = what, num_bytes
        self._num_read = self._num_logged_bytes = 0

    def update(self, tensor: Tensor) -> Tensor:
        self._num_read += tensor.nbytes
        is_end = self._num_read >= self.num_bytes > LOG_EVERY_BYTES
        if self._num_read - self._num_logged_bytes >= LOG_EVERY_BYTES or is_end:
            self._num_logged_bytes = self._num_read
            log.info("reading %s: %d of %d MB", self.what, self._num_read // 10**6, self.num_bytes // 10**6)
        return tensor


class _SkipInitialization(TorchFunctionMode):
    """Random initial values are left out: the file has the real ones, and memory that is never written is never had.

    ``torch.nn.init`` hands its own functions over; what they call inside would no longer be seen here.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (Tensor.uniform_, Tensor.normal_) or getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def uninitialized() -> TorchFunctionMode:
    """Context for making a module whose weights are about to be loaded.

    The meta device would do the same and import for seconds.
    """
    return _SkipInitialization()


@contextmanager
def config_errors_of(folder: Path) -> Iterator[None]:
    """Context for making a module by the configuration in ``folder``: sizes that make none are the folder's fault."""
    try:
        yield
    except (RuntimeError, ValueError, ArithmeticError, MemoryError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise CheckpointError(f"{folder}: the sizes in its configuration make no model: {reason[0]}") from None


def check_weights(module: nn.Module, folder: Path, prefix: str, passed_over: str | None = None) -> int:
    """Hold the headers in ``folder`` against ``module``; no tensor is read. Returns the bytes of what is wanted.

    Raises ``CheckpointError`` naming the first unknown, misshapen or missing tensor. Unknown ones that begin with
    ``passed_over`` are fine.
    """
    expected = module.state_dict()
    found: set[str] = set()
    num_bytes = 0
    for name, shape, kind in iterate_shapes(folder, prefix):
        if name not in expected:
            if not _is_unused(name, passed_over):
                raise CheckpointError(f"{folder}: unknown tensor {prefix}{name}")
            continue
        if shape != list(expected[name].shape):
            shapes = f"{shape}; the config asks for {list(expected[name].shape)}"
            raise CheckpointError(f"{folder}: tensor {prefix}{name} has shape {shapes}")
        if kind not in VALUE_BYTES:
            known = ", ".join(VALUE_BYTES)
            raise CheckpointError(f"{folder}: tensor {prefix}{name} is of type {kind}; what is built here: {known}")
        found.add(name)
        num_bytes += math.prod(shape) * VALUE_BYTES[kind]
    missing = sorted(expected.keys() - found)
    if missing:
        raise CheckpointError(f"{folder}: {len(missing)} tensors are missing, first {prefix}{missing[0]}")
    return num_bytes


def _is_unused(name: str, passed_over: str | None) -> bool:
    return name.endswith(DERIVED_SUFFIX) or (passed_over is not None and name.startswith(passed_over))


def load_weights(
    module: nn.Module,
    folder: Path,
    prefix: str,
    dtype: torch.dtype,
    device: torch.device,
    passed_over: str | None = None,
) -> None:
    """Fill ``module`` from ``folder``, tensor by tensor. Raises as ``check_weights``, before anything is read."""
    reading = LoadProgress(f"{folder.name}/{prefix}*", check_weights(module, folder, prefix, passed_over))
    wanted = module.state_dict().keys()
    found = {
        name: reading.update(tensor).to(device=device, dtype=dtype, copy=True)
        for name, tensor in iterate_tensors(folder, prefix, wanted)
    }
    module.load_state_dict(found, assign=True)
