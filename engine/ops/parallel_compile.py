"""Kernels compiled side by side before anybody launches them one after another."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor

MAX_THREADS = 16
# Within ``compile_only`` what has been asked for in it: to ask again takes Triton longer than to launch.
_asked_for: set[Hashable] | None = None


def is_compile_only() -> bool:
    return _asked_for is not None


def launch(kernel: Any, *grid: int) -> Callable[..., Any]:
    """Return a launcher of ``kernel``; within ``compile_only`` it only compiles."""
    return kernel[grid] if _asked_for is None else partial(_compile, _asked_for, kernel, grid)


def _compile(asked_for: set[Hashable], kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    key = kernel, *map(_kind, args), *options.items()
    if key not in asked_for:
        asked_for.add(key)
        kernel.warmup(*args, grid=grid, **options)


def _kind(value: Any) -> Hashable:
    """Return the key of a compilation: at least what Triton specializes on."""
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % 16 == 0
    if isinstance(value, int):
        return value == 1, value % 16 == 0, value.bit_length() > 31
    return type(value).__name__


@contextmanager
def compile_only() -> Iterator[None]:
    """Kernels launched herein do not run, and leave what they would write as it was. At the end all are compiled,
    but those that failed, which will tell why when they are launched.
    """
    from triton import AsyncCompileMode

    global _asked_for
    threads = ThreadPoolExecutor(min(MAX_THREADS, len(os.sched_getaffinity(0))))
    with threads, AsyncCompileMode(threads, ignore_errors=True):
        _asked_for = set()
        try:
            yield
        finally:
            _asked_for = None
