"""Plot the panels of the Grafana dashboard as an SVG, from a Prometheus that reads a server.

    python -m benchmarks.dashboard_plot --prometheus http://127.0.0.1:9090 --minutes 10 > dashboard.svg

Every query of ``deploy/grafana-dashboard.json`` is run as it is there, and the panels lie as Grafana lays them.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

DASHBOARD = Path(__file__).parent.parent / "deploy" / "grafana-dashboard.json"
# Of a unit of Grafana's grid, which is 24 units wide.
CELL_WIDTH, CELL_HEIGHT = 45, 26
MARGIN_LEFT, MARGIN_TOP, MARGIN_BOTTOM = 52, 26, 34
MAX_POINTS = 120
COLORS = ("#1f5fa8", "#c05020", "#3a8f4a", "#8050a0", "#a08020", "#408f9f")
# Scale and suffix of a unit of Grafana.
UNITS = {"s": (1_000, " ms"), "percentunit": (100, " %"), "bytes": (1e-6, " MB"), "reqps": (1, "/s"), "none": (1, "")}
TIMEOUT_S = 30


class Series(NamedTuple):
    label: str
    # Unix time and value.
    points: list[tuple[float, float]]


class Span(NamedTuple):
    start_s: float
    end_s: float

    @property
    def step_s(self) -> float:
        return max((self.end_s - self.start_s) / MAX_POINTS, 1)


def read_range(address: str, span: Span, expression: str, legend: str) -> list[Series]:
    """Run a query over a span of time. Raises ``OSError``, and ``ValueError`` if Prometheus refuses it."""
    query = {"query": expression, "start": span.start_s, "end": span.end_s, "step": span.step_s}
    url = f"{address}/api/v1/query_range?{urllib.parse.urlencode(query)}"
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as raw:
        answer = json.load(raw)
    if answer["status"] != "success":
        raise ValueError(f"{expression}: {answer}")
    return [
        Series(format_legend(legend, one["metric"]), [(at_s, float(value)) for at_s, value in one["values"]])
        for one in answer["data"]["result"]
    ]


def format_legend(legend: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"{{(\w+)}}", lambda found: labels.get(found[1], ""), legend)


def without_variables(expression: str) -> str:
    """Replace what Grafana fills in."""
    return expression.replace("$__rate_interval", "30s").replace("$instance", ".*")


def draw_panel(panel: Mapping[str, Any], found: Sequence[Series], span: Span) -> str:
    grid = panel["gridPos"]
    left, top = grid["x"] * CELL_WIDTH + MARGIN_LEFT, grid["y"] * CELL_HEIGHT + MARGIN_TOP
    width = grid["w"] * CELL_WIDTH - MARGIN_LEFT - 12
    height = grid["h"] * CELL_HEIGHT - MARGIN_TOP - MARGIN_BOTTOM
    scale, suffix = UNITS[panel["fieldConfig"]["defaults"]["unit"]]
    values = [value for one in found for _, value in one.points if value == value]
    top_value = max([value for value in values if value < math.inf], default=0.0) * 1.1 or 1.0
    shapes = [
        f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="#fafafa" stroke="#bbb"/>',
        f'<text x="{left}" y="{top - 8}" font-weight="bold">{escape(panel["title"])}</text>',
    ]
    for share in (0.0, 0.5, 1.0):
        value = f"{format_number(share * top_value * scale)}{suffix}"
        shapes.append(f'<text x="{left - 4}" y="{top + height * (1 - share) + 4:.0f}" text-anchor="end">{value}</text>')
    for number, one in enumerate(found):
        color = COLORS[number % len(COLORS)]
        for run in split_runs(one.points, span.step_s):
            points = " ".join(
                f"{left + width * (at_s - span.start_s) / (span.end_s - span.start_s):.1f},"
                f"{top + height * (1 - min(value / top_value, 1)):.1f}"
                for at_s, value in run
            )
            shapes.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.5"/>')
        x, y = left + number % 2 * width / 2, top + height + 14 + number // 2 * 12
        shapes.append(f'<text x="{x:.0f}" y="{y}" fill="{color}">{escape(one.label)}</text>')
    return f"<g>{''.join(shapes)}</g>"


def format_number(value: float) -> str:
    return f"{value:.3g}" if value < 1_000 else f"{value:.0f}"


def split_runs(points: Sequence[tuple[float, float]], step_s: float) -> list[list[tuple[float, float]]]:
    """Divide points where values are missing; NaN is the quotient of two rates that are zero."""
    real = [point for point in points if point[1] == point[1]]
    starts = [0, *(index for index, (a, b) in enumerate(pairwise(real), 1) if b[0] - a[0] > 1.5 * step_s), len(real)]
    return [real[start:end] for start, end in pairwise(starts) if end > start]


def draw_dashboard(dashboard: Mapping[str, Any], read: Callable[[str, str], list[Series]], span: Span) -> str:
    """``read`` runs a query and gives its series with this legend."""
    panels = dashboard["panels"]
    width = 24 * CELL_WIDTH
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels) * CELL_HEIGHT
    drawn = [
        draw_panel(
            panel,
            [
                one
                for target in panel["targets"]
                for one in read(without_variables(target["expr"]), target["legendFormat"])
            ],
            span,
        )
        for panel in panels
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="10"><rect width="{width}" height="{height}" fill="white"/>{"".join(drawn)}</svg>\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prometheus", required=True, help="address of Prometheus")
    parser.add_argument("--minutes", type=float, default=10, help="time up to now")
    args = parser.parse_args()
    now_s = time.time()
    span = Span(now_s - 60 * args.minutes, now_s)
    dashboard = json.loads(DASHBOARD.read_text())
    sys.stdout.write(draw_dashboard(dashboard, partial(read_range, args.prometheus, span), span))


if __name__ == "__main__":
    main()
