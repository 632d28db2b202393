"""Plot TTFA and continuity against load as an SVG, from the results of ``benchmarks.gpu``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

WIDTH, HEIGHT, MARGIN = 720, 360, 56
COLOURS = {"p50": "#7aa6d8", "p95": "#1f5fa8", "continuity": "#c05020"}


class Axes(NamedTuple):
    """Map a load and a share of the height to coordinates."""

    most: float

    def x(self, load: float) -> float:
        return MARGIN + (WIDTH - 2 * MARGIN) * load / self.most

    @staticmethod
    def y(share: float) -> float:
        return HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * share


def line(axes: Axes, loads: Sequence[float], shares: Sequence[float], colour: str) -> str:
    points = " ".join(f"{axes.x(load):.1f},{axes.y(share):.1f}" for load, share in zip(loads, shares, strict=True))
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'


def text(x: float, y: float, words: str, anchor: str = "middle", colour: str = "black") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{colour}">{words}</text>'


def ticks(place: Callable[[float], tuple[float, float]], most: float, unit: str, anchor: str) -> str:
    return "".join(text(*place(part), f"{most * part:g}{unit}", anchor) for part in (0.0, 0.25, 0.5, 0.75, 1.0))


def plot(found: Sequence[dict[str, Any]], load: str, title: str) -> str:
    """Plot the results ``found`` of ``gpu.report``; ``load`` is the key of the load."""
    rows = sorted(found, key=lambda row: row[load])
    loads = [float(row[load]) for row in rows]
    most_ms = 1.1 * max(row["ttfa_ms"]["p95"] for row in rows)
    axes = Axes(max(loads))
    lines = [line(axes, loads, [r["ttfa_ms"][p] / most_ms for r in rows], COLOURS[p]) for p in ("p50", "p95")]
    lines.append(line(axes, loads, [row["continuity"] for row in rows], COLOURS["continuity"]))
    marks = [
        ticks(lambda part: (axes.x(part * axes.most), HEIGHT - MARGIN + 18), axes.most, "", "middle"),
        ticks(lambda part: (MARGIN - 6, axes.y(part) + 4), round(most_ms, 1), "", "end"),
        ticks(lambda part: (WIDTH - MARGIN + 6, axes.y(part) + 4), 100.0, " %", "start"),
        text(WIDTH / 2, HEIGHT - 14, load),
        text(WIDTH / 2, 20, title),
        text(MARGIN, 40, "first audio, ms: p50", "start", COLOURS["p50"]),
        text(MARGIN + 150, 40, "p95", "start", COLOURS["p95"]),
        text(WIDTH - MARGIN, 40, "listeners without a gap", "end", COLOURS["continuity"]),
    ]
    frame = f"M{MARGIN},{MARGIN}V{HEIGHT - MARGIN}H{WIDTH - MARGIN}V{MARGIN}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-size="12">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/><path d="{frame}" fill="none" stroke="grey"/>'
        f"{''.join(marks)}{''.join(lines)}</svg>\n"
    )
