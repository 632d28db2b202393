"""The C library's allocator keeps what is freed, in pieces between what is not; here it is told to give it back."""

from __future__ import annotations

import ctypes
import sys
from functools import cache


@cache
def _trim() -> ctypes._NamedFuncPointer | None:
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


def trim_heap() -> None:
    """Whole free pages go back to the system; without effect where the C library has no such call."""
    trim = _trim()
    if trim is not None:
        trim(0)
