"""Kernels compiled in parallel before they are launched one after another."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor

MAX_THREADS = 16
# Receives a kernel, its grid, its arguments and options instead of the device.
Sink = Callable[[Any, tuple[int, ...], tuple[Any, ...], dict[str, Any]], None]
_sink: Sink | None = None


def is_compile_only() -> bool:
    return _sink is not None


def launch(kernel: Any, *grid: int) -> Callable[..., Any]:
    """Return a launcher of ``kernel``; within ``intercept`` it does not run."""
    return kernel[grid] if _sink is None else partial(_intercepted, _sink, kernel, grid)


def _intercepted(sink: Sink, kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    sink(kernel, grid, args, options)


@contextmanager
def intercept(sink: Sink) -> Iterator[None]:
    """Hand launches over to ``sink``: kernels do not run, and leave what they would write as it was."""
    global _sink
    _sink = sink
    try:
        yield
    finally:
        _sink = None


def _kind(value: Any) -> Hashable:
    """Return the key of a compilation: at least what Triton specializes on."""
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % 16 == 0
    if isinstance(value, int):
        return value == 1, value % 16 == 0, value.bit_length() > 31
    return type(value).__name__


@contextmanager
def compile_only() -> Iterator[None]:
    """Kernels launched herein do not run; at the end all are compiled. Those that fail raise when they are launched."""
    from triton import AsyncCompileMode

    # A repeated request takes Triton longer than a launch.
    asked_for: set[Hashable] = set()

    def compile_kernel(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], options: dict[str, Any]) -> None:
        key = kernel, *map(_kind, args), *options.items()
        if key not in asked_for:
            asked_for.add(key)
            kernel.warmup(*args, grid=grid, **options)

    threads = ThreadPoolExecutor(min(MAX_THREADS, len(os.sched_getaffinity(0))))
    with threads, AsyncCompileMode(threads, ignore_errors=True), intercept(compile_kernel):
        yield
