"""Which slots decode how many frames in this step: ``decode.batcher.plan_calls`` over arrays by slot. No torch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from engine.runtime.call_planner import CALL_FRAMES

Numbers = npt.NDArray[np.int64]
Seconds = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
SIZES = np.array(sorted(CALL_FRAMES))


def plan_round(
    waiting: Numbers, slack_s: Seconds, wanted_frames: Numbers, final: Flags, gather_slack_s: float
) -> tuple[Numbers, Numbers]:
    """All by slot -> the slots that decode now, and how many frames each."""
    patient = (slack_s > gather_slack_s) & ~final
    slots = np.flatnonzero((waiting > 0) & ~(patient & (waiting < wanted_frames)))
    counts, wanted = waiting[slots], wanted_frames[slots]
    most = np.where(np.isinf(slack_s[slots]), np.minimum(counts, wanted), counts)
    return slots, SIZES[np.searchsorted(SIZES, most, side="right") - 1]


def limit_round(slots: Numbers, counts: Numbers, slack_s: Seconds, max_frames: int) -> tuple[Numbers, Numbers]:
    """As many of ``slots`` as make ``max_frames``, those with least slack first, and all that have none.

    Slots that began together gather together: without this all would decode many frames in one step, and none in the
    next, and a request without its first frame would wait for all of theirs.
    """
    order = np.lexsort((slots, slack_s))
    ahead = np.cumsum(counts[order]) - counts[order]
    chosen = order[(ahead < max_frames) | (slack_s[order] <= 0.0)]
    return slots[chosen], counts[chosen]


def split_into_calls(
    slots: Numbers, counts: Numbers, slack_s: Seconds, rows_of: Callable[[int], int]
) -> list[tuple[Numbers, int]]:
    """One call each: slots and frames a row, at most ``rows_of(frames)`` slots, those with least slack first; and the
    call first whose first slot has least. ``slack_s`` is of all slots.
    """
    calls = []
    for count in np.unique(counts).tolist():
        own, most = slots[counts == count], rows_of(count)
        own = own[np.argsort(slack_s[own], kind="stable")]
        calls += [(own[start : start + most], count) for start in range(0, len(own), most)]
    return sorted(calls, key=lambda call: (slack_s[call[0][0]], call[1]))
