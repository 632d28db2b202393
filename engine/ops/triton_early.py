"""Kernels that start while the one before ends (programmatic dependent launch, compute capability 9.0 on).

A graph spends about a microsecond between two kernels, and a frame has several hundred. A kernel that is launched with
``launch_pdl`` starts as soon as every program of the one before lets it. It waits itself for the results. While it
waits, the first bytes of each row of its weights come into the L2 cache.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton import knobs

# When a kernel lets the next one start: as soon as it has waited, or before it writes.
AT_START, AT_END = tl.constexpr(1), tl.constexpr(2)
# Options of a launch: for the kernel, which then waits, and for Triton.
EARLY_START: dict[str, int] = {"EARLY": AT_START.value, "launch_pdl": True}
EARLY_END: dict[str, int] = {"EARLY": AT_END.value, "launch_pdl": True}
EARLY_OPTIONS = {*EARLY_START, "PREFETCH"}


def capabilities() -> set[tuple[int, int]]:
    """Return the compute capabilities of the GPUs that are here, or none if kernels are not compiled for these."""
    import torch  # not where kernels are only compiled

    if knobs.runtime.interpret or knobs.runtime.override_arch or not torch.cuda.is_available():
        return set()
    # Frames and decoding may run on different ones.
    return {torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count())}


def can_start_early() -> bool:
    found = capabilities()
    return bool(found) and min(found) >= (9, 0)


def is_hopper() -> bool:
    """Return whether kernels are compiled for GPUs of compute capability 9.0 only."""
    return capabilities() == {(9, 0)}


@triton.jit
def wait_for_inputs(EARLY: tl.constexpr) -> None:
    """Wait for the end of all earlier kernels; AT_START, let the next one start.

    It comes before all loads and stores of every kernel that has EARLY. A kernel that ends has thus waited for all
    before it.
    """
    if EARLY > 0:
        tl.extra.cuda.gdc_wait()
    if EARLY == AT_START:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def start_next(EARLY: tl.constexpr) -> None:
    """AT_END, let the next kernel start."""
    if EARLY == AT_END:
        tl.extra.cuda.gdc_launch_dependents()


def fix_keys(*functions: object) -> None:
    """Let Triton compute the keys of functions that kernels call, callees before callers.

    Else a kernel's own key, by which its compiled code is found, depends on which kernel of the process came first.
    """
    for function in functions:
        getattr(function, "cache_key", None)  # none where kernels are interpreted


fix_keys(wait_for_inputs, start_next)
