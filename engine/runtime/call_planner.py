"""Which slots decode how many frames now, over arrays by slot. No torch.

Larger calls cost less a frame; a listener with little left must not wait for them.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

# Frames one call may decode for each of its rows, largest first.
CALL_FRAMES = (8, 4, 2, 1)
# Rows of one call: each shape costs the math library some milliseconds and megabytes when it is met first.
CALL_ROWS = (1, 2, 4, 6, 8, 12, 16)
# Rows times frames of one call; larger ones cost no less a frame, and fall out of the second cache.
MAX_CALL_FRAMES_TOTAL = 16
# What a listener with lead to spare waits for, unless it is said.
GATHER_FRAMES = 4
# A listener with more lead than this waits for a larger decode call.
DECODE_BATCHING_SLACK_S = 0.4
NO_PREFERENCE: Mapping[int, int] = {}


def all_calls() -> Iterator[tuple[int, int]]:
    """(rows, frames) of every call there can be, small ones first."""
    shapes = ((rows, frames) for frames in CALL_FRAMES for rows in CALL_ROWS if rows * frames <= MAX_CALL_FRAMES_TOTAL)
    return iter(sorted(shapes, key=math.prod))


def padded_rows(num_rows: int) -> int:
    """The smallest row count of a call that holds this many rows."""
    return CALL_ROWS[bisect_left(CALL_ROWS, num_rows)]


Numbers = npt.NDArray[np.int64]
Seconds = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
SIZES = np.array(sorted(CALL_FRAMES))


def plan_round(
    waiting: Numbers, slack_s: Seconds, wanted_frames: Numbers, final: Flags, gather_slack_s: float
) -> tuple[Numbers, Numbers]:
    """All by slot -> the slots that decode now, and how many frames each; the rest waits for the next round.

    ``wanted_frames``: what a slot with slack waits for. One whose slack is without end gets no more than that either.
    """
    patient = (slack_s > gather_slack_s) & ~final
    slots = np.flatnonzero((waiting > 0) & ~(patient & (waiting < wanted_frames)))
    counts, wanted = waiting[slots], wanted_frames[slots]
    most = np.where(np.isinf(slack_s[slots]), np.minimum(counts, wanted), counts)
    return slots, SIZES[np.searchsorted(SIZES, most, side="right") - 1]


def limit_round(slots: Numbers, counts: Numbers, slack_s: Seconds, max_frames: int) -> tuple[Numbers, Numbers]:
    """Return as many of ``slots`` as make ``max_frames``, those with least slack first, and all that have none.

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
