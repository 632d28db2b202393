"""Outcomes summed up: numbers for machines, a table for people, a plot on request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from realtime.bench.plan import ResponseResult

PERCENTILES = (50, 95, 99)


class Percentiles(msgspec.Struct, frozen=True):
    p50: float
    p95: float
    p99: float


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The benchmark's last line."""

    sessions: int
    # Responses without those that the benchmark cancelled.
    responses: int
    errors: int
    ttfa_ms: Percentiles | None
    ttfa_first_delta_ms: Percentiles | None
    ttfa_audible_ms: Percentiles | None
    # Set with ``--burst`` only: otherwise audio is paced.
    rtf: Percentiles | None
    # Share of the responses that were heard to their end without an underrun.
    continuity: float | None
    audio_s_per_s: float
    cancel_ms: Percentiles | None
    cancel_done_ms: Percentiles | None
    underruns: dict[str, int]
    error_codes: dict[str, int]
    server_rss_mb: float | None

    @property
    def is_success(self) -> bool:
        return self.errors == 0 and self.continuity in (None, 1.0)


def summarise(outcomes: Sequence[ResponseResult], sessions: int, burst: bool, server_rss_mb: float | None) -> Summary:
    spoken = [outcome for outcome in outcomes if outcome.status == "completed" and outcome.audio_s > 0]
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    began = [outcome for outcome in outcomes if outcome.status != "failed"]
    whole = sum(not (outcome.underruns_text or outcome.underruns_engine) for outcome in spoken)
    wall_s = max((o.ended_s for o in outcomes), default=0.0) - min((o.begun_s for o in outcomes), default=0.0)
    return Summary(
        sessions=sessions,
        responses=sum(outcome.status != "cancelled" for outcome in outcomes),
        errors=len(failed),
        ttfa_ms=_percentiles(began, lambda outcome: outcome.ttfa_ms),
        ttfa_first_delta_ms=_percentiles(began, lambda outcome: outcome.ttfa_first_delta_ms),
        ttfa_audible_ms=_percentiles(began, lambda outcome: outcome.ttfa_audible_ms),
        rtf=_percentiles(spoken, lambda outcome: outcome.work_s / outcome.audio_s) if burst else None,
        continuity=None if burst or not spoken else round(whole / len(spoken), 4),
        audio_s_per_s=round(sum(outcome.audio_s for outcome in outcomes) / wall_s, 2) if wall_s else 0.0,
        cancel_ms=_percentiles(outcomes, lambda outcome: outcome.cancel_ms),
        cancel_done_ms=_percentiles(outcomes, lambda outcome: outcome.cancel_done_ms),
        underruns={
            "text": sum(outcome.underruns_text for outcome in spoken),
            "engine": sum(outcome.underruns_engine for outcome in spoken),
        },
        error_codes=dict(Counter(outcome.error or "failed" for outcome in failed)),
        server_rss_mb=None if server_rss_mb is None else round(server_rss_mb, 1),
    )


def table(summary: Summary) -> str:
    rows = [
        ("sessions", f"{summary.sessions}, {summary.responses} responses, {summary.errors} errors"),
        ("time to first audio", _row(summary.ttfa_ms, "ms")),
        ("  from the first delta", _row(summary.ttfa_first_delta_ms, "ms")),
        ("  to the first audible sample", _row(summary.ttfa_audible_ms, "ms")),
        ("real-time factor", _row(summary.rtf, "")),
        ("continuity", "-" if summary.continuity is None else f"{100 * summary.continuity:.2f} % of responses"),
        ("underruns", ", ".join(f"{count} by the {cause}" for cause, count in summary.underruns.items())),
        ("cancel to last packet", _row(summary.cancel_ms, "ms")),
        ("cancel to response.done", _row(summary.cancel_done_ms, "ms")),
        ("audio", f"{summary.audio_s_per_s:.2f} s a second"),
        ("server memory", "-" if summary.server_rss_mb is None else f"{summary.server_rss_mb:.0f} MB"),
        *((f"error {code}", str(count)) for code, count in summary.error_codes.items()),
    ]
    return "\n".join(f"{name:<30} {value}" for name, value in rows)


def plot(outcomes: Sequence[ResponseResult]) -> str:
    """The distribution of the time to first audio, as an SVG."""
    times_ms = sorted(outcome.ttfa_ms for outcome in outcomes if outcome.ttfa_ms is not None)
    if not times_ms:
        return '<svg xmlns="http://www.w3.org/2000/svg"/>'
    width, height, margin = 640, 320, 40
    most_ms = times_ms[-1] * 1.05
    x = [margin + (width - 2 * margin) * time_ms / most_ms for time_ms in times_ms]
    y = [height - margin - (height - 2 * margin) * (i + 1) / len(times_ms) for i in range(len(times_ms))]
    line = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    labels = "".join(
        f'<text x="{margin + (width - 2 * margin) * part:.0f}" y="{height - 15}" text-anchor="middle">'
        f"{most_ms * part:.0f} ms</text>"
        for part in (0, 0.25, 0.5, 0.75, 1)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-size="12">'
        f'<rect width="{width}" height="{height}" fill="white"/>{labels}'
        f'<text x="{margin}" y="20">share of responses by time to first audio ({len(times_ms)} responses)</text>'
        f'<path d="M{margin},{margin}V{height - margin}H{width - margin}" fill="none" stroke="grey"/>'
        f'<polyline points="{line}" fill="none" stroke="steelblue" stroke-width="2"/></svg>'
    )


def _percentiles(
    outcomes: Sequence[ResponseResult], value: Callable[[ResponseResult], float | None]
) -> Percentiles | None:
    values = [found for outcome in outcomes if (found := value(outcome)) is not None]
    if not values:
        return None
    return Percentiles(*(round(float(np.percentile(values, at)), 3) for at in PERCENTILES))


def _row(percentiles: Percentiles | None, unit: str) -> str:
    if percentiles is None:
        return "-"
    return f"p50 {percentiles.p50:.4g}  p95 {percentiles.p95:.4g}  p99 {percentiles.p99:.4g} {unit}".rstrip()
