"""What the load is, and what came of each response: the messages between the benchmark and its processes."""

from __future__ import annotations

from typing import Literal

import msgspec


class LoadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """For one process of clients."""

    url: str
    api_key: str | None = None
    first_session: int = 0
    num_sessions: int = 1
    """Of this process; sessions are numbered through over all processes."""
    total_sessions: int = 1
    num_responses: int = 1
    """Of each session, one after the other."""
    tokens_per_second: float = 50.0
    """0 sends each text at once."""
    burst: bool = False
    cancel: bool = True
    """Whether each session ends with one more response that is cancelled in the middle."""
    count_packets: bool = False
    """Whether packets are counted and not decoded."""
    frames: int | None = None
    """Every segment is made so many codec frames long; for weights that know no end."""
    voice: str | None = None
    corpus: str
    seed: int = 0
    spread_s: float = 1.0
    """Sessions arrive evenly over so long a time."""


class ResponseResult(msgspec.Struct, frozen=True, kw_only=True):
    """One response as its client saw it. Times in ms are from the delta that made the first word final."""

    session: int
    status: Literal["completed", "cancelled", "failed"]
    error: str | None = None
    begun_s: float = 0.0
    """By the machine's monotonic clock, as ``ended_s``."""
    ended_s: float = 0.0
    ttfa_ms: float | None = None
    ttfa_first_delta_ms: float | None = None
    """From the first delta."""
    ttfa_audible_ms: float | None = None
    """To the first sample above -50 dBFS."""
    audio_s: float = 0.0
    work_s: float = 0.0
    """To the last packet."""
    underruns_text: int = 0
    underruns_engine: int = 0
    cancel_ms: float | None = None
    """From the cancel to the last audio message after it; 0 when none came."""
    cancel_done_ms: float | None = None
    """From the cancel to ``response.done``."""
