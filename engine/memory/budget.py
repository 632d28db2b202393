"""The memory of a CUDA device that an engine may use, and how much of it is left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from engine.config import EngineConfig
from engine.errors import InvalidRequest

GB = 2**30
# Part of a budget for what the process holds outside of torch's allocator: CUDA context, code of kernels, graphs.
OUTSIDE_BYTES = GB


def limit_memory(memory_gb: float | None, device: torch.device) -> None:
    """Let this process allocate no more on ``device``; ``None`` removes a limit. Raises ``InvalidRequest``."""
    if device.type != "cuda":
        if memory_gb is not None:
            raise InvalidRequest(f"memory_gb is {memory_gb}; it limits a CUDA device, not {device.type}", "memory_gb")
        return
    device = with_index(device)
    total = torch.cuda.get_device_properties(device).total_memory
    if memory_gb is None:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
        return
    allowed = int(memory_gb * GB) - OUTSIDE_BYTES
    if allowed <= 0:
        raise InvalidRequest(
            f"memory_gb is {memory_gb}; CUDA and its graphs need {OUTSIDE_BYTES / GB} of it", "memory_gb"
        )
    if memory_gb * GB > total:
        raise InvalidRequest(f"memory_gb is {memory_gb}; {device} has {total / GB:.1f}", "memory_gb")
    torch.cuda.set_per_process_memory_fraction(allowed / total, device)


def free_bytes(device: torch.device) -> int:
    """Bytes that this process can still allocate on a CUDA device, by its limit and by what others use."""
    device = with_index(device)
    torch.cuda.empty_cache()  # of an engine that has died
    free, total = torch.cuda.mem_get_info(device)
    allowed = int(torch.cuda.get_per_process_memory_fraction(device) * total)
    return min(free, allowed - torch.cuda.memory_reserved(device))


def with_index(device: torch.device) -> torch.device:
    return device if device.index is not None else torch.device("cuda", torch.cuda.current_device())


@contextmanager
def budget_errors(config: EngineConfig, doing: str, *reducible: str) -> Iterator[None]:
    """Turn running out of the limit's memory into ``InvalidRequest``; without a limit errors pass.

    ``reducible``: the options to reduce.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        if config.memory_gb is None:
            raise
        values = ", ".join(f"{name} is {getattr(config, name)}" for name in reducible)
        raise InvalidRequest(
            f"memory_gb is {config.memory_gb}; that is too little for {doing}: reduce one of these: {values}",
            "memory_gb",
        ) from None
