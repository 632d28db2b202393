"""A kernel's beginning beside the end of the one before it (programmatic dependent launch, compute capability 9 on).

A kernel launched so may be on the device before what it reads is there: ``begin`` waits for that. What is constant may
be touched earlier: a product asks for its weights while the kernel before it still runs.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def begin(EARLY: tl.constexpr):
    """Wait for every kernel before this one, and let the next begin."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def prefetch(at, EARLY: tl.constexpr):
    """Bring the 128 bytes at each of these pointers into the second cache."""
    if EARLY:
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [at.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1
        )
