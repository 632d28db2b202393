"""Compilation for Hopper without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.ops import parallel_compile


def compile_for_hopper(kernel: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``kernel`` be compiled for Hopper, into an empty cache."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    from engine.ops.compile_worker import TargetDriver

    class HopperDriver(TargetDriver):
        def get_current_stream(self, device: str) -> int:
            return 0

    monkeypatch.setattr(kernel, "device_caches", type(kernel.device_caches)(kernel.create_binder))
    monkeypatch.setattr(driver, "_active", HopperDriver(GPUTarget("cuda", 90, 32)))
    monkeypatch.setattr(parallel_compile, "MAX_PROCESSES", 1)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
