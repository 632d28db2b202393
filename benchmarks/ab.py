"""Compare a benchmark between two trees, run alternately on the same machine.

Runs ``python -m benchmarks.NAME`` in the parent tree and in this one, one after the other, for a number of pairs. Each
run must print JSON as its last line; every number in it is a figure. Reports for each figure the medians, the median of
the pairwise ratios, and the noise: how much one run of the parent differs from the next.

    git worktree add ../parent COMMIT
    python -m benchmarks.ab --parent ../parent --pairs 5 --limit step_ms=3 -- engine_step --batch 1,4,12

``--limit FIGURE=PERCENT`` fails the comparison where a figure whose name ends in FIGURE grew by more than PERCENT and
by more than the noise. A negative PERCENT is for figures that must not fall. The last line is JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

TREE = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure over all pairs; ratios are change / parent."""

    figure: str
    parent: float
    change: float
    ratio: float
    min_noise: float
    max_noise: float

    @property
    def is_noise(self) -> bool:
        return self.min_noise <= self.ratio <= self.max_noise

    def exceeds(self, limit_percent: float) -> bool:
        """True if the figure moved beyond the limit, in the limit's direction, and beyond the noise."""
        bound = 1 + limit_percent / 100
        is_beyond = self.ratio < bound if limit_percent < 0 else self.ratio > bound
        return is_beyond and not self.is_noise


def flatten(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Dotted names and values of all numbers in a JSON value."""
    match value:
        case bool() | str() | None:
            return
        case int() | float():
            yield name, float(value)
        case dict():
            for key, item in value.items():
                yield from flatten(item, f"{name}.{key}" if name else key)
        case list():
            for index, item in enumerate(value):
                yield from flatten(item, f"{name}.{index}" if name else str(index))


def read_figures(output: str) -> dict[str, float]:
    """Figures of the JSON that a benchmark printed as its last line. Raises ``ValueError`` where it is none."""
    lines = output.strip().splitlines()
    if not lines:
        raise ValueError("the benchmark printed nothing")
    return dict(flatten(json.loads(lines[-1])))


def run_benchmark(tree: Path, python: str, benchmark: Sequence[str]) -> dict[str, float]:
    """Figures of one run in ``tree``. Raises ``RuntimeError`` with its error output where the run failed."""
    command = [python, "-m", f"benchmarks.{benchmark[0]}", *benchmark[1:]]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} exited with {done.returncode} in {tree}: {done.stderr[-2000:]}")
    return read_figures(done.stdout)


def compare(parents: Sequence[dict[str, float]], changes: Sequence[dict[str, float]]) -> list[Comparison]:
    """Compare the figures that every run has; those that are 0 in a parent run have no ratio and are left out."""
    common = set.intersection(*(set(run) for run in (*parents, *changes)))
    figures = [name for name in parents[0] if name in common and all(run[name] for run in parents)]
    return [compare_figure(name, [run[name] for run in parents], [run[name] for run in changes]) for name in figures]


def compare_figure(name: str, parents: Sequence[float], changes: Sequence[float]) -> Comparison:
    ratios = [change / parent for parent, change in zip(parents, changes, strict=True)]
    steps = [later / earlier for earlier, later in itertools.pairwise(parents)]
    noise = [1.0, *steps, *(1 / step for step in steps)]
    return Comparison(
        figure=name,
        parent=statistics.median(parents),
        change=statistics.median(changes),
        ratio=statistics.median(ratios),
        min_noise=min(noise),
        max_noise=max(noise),
    )


def read_limit(text: str) -> tuple[str, float]:
    figure, _, percent = text.rpartition("=")
    if not figure:
        raise argparse.ArgumentTypeError(f"{text!r} is not FIGURE=PERCENT")
    return figure, float(percent)


def find_exceeded(comparisons: Sequence[Comparison], limits: Sequence[tuple[str, float]]) -> list[str]:
    """Names of the figures beyond their limits. Raises ``ValueError`` for a limit that matches no figure."""
    exceeded = []
    for suffix, percent in limits:
        matching = [one for one in comparisons if one.figure.endswith(suffix)]
        if not matching:
            raise ValueError(f"no figure's name ends in {suffix!r}")
        exceeded += [one.figure for one in matching if one.exceeds(percent)]
    return exceeded


def print_table(comparisons: Sequence[Comparison]) -> None:
    print(f"{'figure':44} {'parent':>12} {'change':>12} {'ratio':>7}  noise")
    for one in comparisons:
        noise = f"{one.min_noise:.3f} to {one.max_noise:.3f}" + (" (within)" if one.is_noise else "")
        print(f"{one.figure:44} {one.parent:12.4g} {one.change:12.4g} {one.ratio:7.3f}  {noise}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parent", type=Path, required=True, help="checkout of the commit to compare with")
    parser.add_argument("--change", type=Path, default=TREE, help="(default: this checkout)")
    parser.add_argument("--parent-python", default=sys.executable, help="Python interpreter (default: this one)")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--limit", type=read_limit, action="append", default=[], metavar="FIGURE=PERCENT")
    parser.add_argument("benchmark", nargs="+", metavar="NAME [ARG ...]", help="benchmark and its arguments, after --")
    args = parser.parse_args()
    if args.pairs < 2:
        parser.error(f"--pairs is {args.pairs}; the noise needs at least 2")
    parents, changes = [], []
    for index in range(args.pairs):
        parents.append(run_benchmark(args.parent, args.parent_python, args.benchmark))
        changes.append(run_benchmark(args.change, sys.executable, args.benchmark))
        print(f"pair {index + 1} of {args.pairs} done", file=sys.stderr)
    comparisons = compare(parents, changes)
    exceeded = find_exceeded(comparisons, args.limit)
    print_table(comparisons)
    report = {one.figure: asdict(one) for one in comparisons}
    print(json.dumps({"benchmark": args.benchmark, "pairs": args.pairs, "exceeded": exceeded, "figures": report}))
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main())
