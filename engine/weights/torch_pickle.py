"""State dicts in PyTorch's zip format, for released checkpoints that come in no other.

Read with ``weights_only``, so that nothing in the file is run, and mapped, so that a tensor is read when it is copied.
What the file could make the reader do is bounded before it is opened: its size, and that of its one pickle.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from engine.errors import CheckpointError
from engine.weights.loader import LoadProgress

VALUE_TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
# Of names, shapes and types; the released files have less than 0.1 MB.
MAX_PICKLE_BYTES = 16 * 2**20
OVERHEAD_BYTES = 2**20
# Around every tensor the format writes less than half a kilobyte.
OVERHEAD_BYTES_PER_TENSOR = 4_096

State = dict[str, Tensor]
Adapt = Callable[[State], State]


def read_state(path: Path, max_bytes: int) -> State:
    """The tensors in ``path``, mapped and not yet read. Raises ``CheckpointError`` naming the file."""
    return checked_state(read_object(path, max_bytes, mmap=True), path, max_bytes)


def read_object(path: Path, max_bytes: int, mmap: bool = False) -> object:
    """Whatever of tensors and plain values the file holds. Raises ``CheckpointError`` naming it."""
    check_file(path, max_bytes)
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except Exception as error:  # a damaged pickle leads the unpickler into errors of a dozen kinds
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"{path}: cannot be read: {reason}") from None


def check_file(path: Path, max_bytes: int) -> None:
    try:
        num_bytes = path.stat().st_size
        if num_bytes > max_bytes:
            raise CheckpointError(f"{path}: has {num_bytes} bytes; what the configuration asks for has {max_bytes}")
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except FileNotFoundError:
        raise CheckpointError(f"{path.parent} has no {path.name}") from None
    except (OSError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"{path}: cannot be read as PyTorch's zip format: {error}") from None
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED:
            raise CheckpointError(f"{path}: {entry.filename!r} is compressed, which PyTorch never writes")
        if entry.filename.endswith(".pkl") and entry.file_size > MAX_PICKLE_BYTES:
            raise CheckpointError(f"{path}: {entry.filename!r} has {entry.file_size} bytes, at most {MAX_PICKLE_BYTES}")


def checked_state(state: object, path: Path, max_bytes: int) -> State:
    if not isinstance(state, dict):
        raise CheckpointError(f"{path}: holds {type(state).__name__}, expected tensors by name")
    for name, tensor in state.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise CheckpointError(f"{path}: {name!r} is {type(tensor).__name__}, expected a tensor")
        if tensor.layout is not torch.strided or tensor.is_nested or tensor.dtype not in VALUE_TYPES:
            known = ", ".join(str(kind).removeprefix("torch.") for kind in VALUE_TYPES)
            kind = f"{tensor.layout} {tensor.dtype}".replace("torch.", "")
            raise CheckpointError(f"{path}: tensor {name} is of type {kind}; what is built here: {known}")
        check_size(tensor, f"{path}: tensor {name}", max_bytes)
    return state


def check_size(tensor: Tensor, where: str, max_bytes: int) -> None:
    """A few bytes may be read again and again and so stand for any shape; computing with the tensor
    would allocate it.
    """
    if (num_bytes := tensor.numel() * tensor.element_size()) > max_bytes:
        raise CheckpointError(f"{where} has shape {list(tensor.shape)}, {num_bytes} bytes; at most {max_bytes}")


def max_bytes_of(shapes: Mapping[str, Tensor], num_more: int = 0) -> int:
    """Return the largest size of a file with these tensors in the widest type."""
    values = sum(math.prod(tensor.shape) for tensor in shapes.values())
    return 8 * values + num_more + OVERHEAD_BYTES + OVERHEAD_BYTES_PER_TENSOR * len(shapes)


def check_state(module: nn.Module, path: Path, adapt: Adapt | None = None, num_more: int = 0) -> State:
    """Return the mapped tensors of ``path`` for ``module``; ``adapt`` makes its names and weights those of the module.

    ``num_more``: bytes of the file that ``adapt`` passes over. Raises ``CheckpointError`` naming the first unknown,
    misshapen or missing tensor.
    """
    expected = module.state_dict()
    found = read_state(path, max_bytes_of(expected, num_more))
    if adapt is not None:
        found = adapt(found)
    for name, tensor in found.items():
        if name not in expected:
            raise CheckpointError(f"{path}: unknown tensor {name}")
        if tensor.shape != expected[name].shape:
            shapes = f"{list(tensor.shape)}; the configuration asks for {list(expected[name].shape)}"
            raise CheckpointError(f"{path}: tensor {name} has shape {shapes}")
    missing = sorted(expected.keys() - found.keys())
    if missing:
        raise CheckpointError(f"{path}: {len(missing)} tensors are missing, first {missing[0]}")
    return found


def load_state(
    module: nn.Module,
    path: Path,
    dtype: torch.dtype,
    device: torch.device,
    adapt: Adapt | None = None,
    num_more: int = 0,
) -> None:
    """Fill ``module``, tensor by tensor. Raises as ``check_state``, before a value is read."""
    found = check_state(module, path, adapt, num_more)
    reading = LoadProgress(path.name, sum(tensor.nbytes for tensor in found.values()))
    taken = {
        name: reading.update(tensor).to(device=device, dtype=dtype, copy=True).contiguous()
        for name, tensor in found.items()
    }
    module.load_state_dict(taken, assign=True)
