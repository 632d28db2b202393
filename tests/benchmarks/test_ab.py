"""The comparison of a benchmark between two trees, with real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.ab import compare_figure, find_exceeded, flatten, read_figures

ROOT = Path(__file__).parents[2]


def make_tree(folder: Path, *step_ms: float) -> Path:
    """Create a tree with a benchmark ``toy`` that reports the next of ``step_ms`` at each run."""
    package = folder / "benchmarks"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "toy.py").write_text(
        "import json, pathlib\n"
        "runs = pathlib.Path('runs')\n"
        "index = len(runs.read_text()) if runs.exists() else 0\n"
        "runs.write_text('x' * (index + 1))\n"
        f"values = {list(step_ms)}\n"
        "print('a line before')\n"
        "print(json.dumps({'batch': [{'step_ms': values[index % len(values)], 'name': 'toy', 'ok': True}]}))\n"
    )
    return folder


def run_ab(parent: Path, change: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.ab", "--parent", str(parent), "--change", str(change), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_slower_change_exceeds_its_limit(tmp_path):
    parent, change = make_tree(tmp_path / "a", 10.0, 10.1, 9.9), make_tree(tmp_path / "b", 11.0, 11.1, 10.9)
    done = run_ab(parent, change, "--pairs", "3", "--limit", "step_ms=3", "--", "toy")
    report = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 1, done.stderr
    assert report["exceeded"] == ["batch.0.step_ms"]
    assert report["figures"]["batch.0.step_ms"]["ratio"] == pytest.approx(1.1, rel=0.01)
    assert (len((parent / "runs").read_text()), len((change / "runs").read_text())) == (3, 3)


def test_difference_within_noise_passes(tmp_path):
    parent, change = make_tree(tmp_path / "a", 10.0, 12.0, 10.0), make_tree(tmp_path / "b", 11.0, 13.0, 11.0)
    done = run_ab(parent, change, "--pairs", "3", "--limit", "step_ms=3", "--", "toy")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["exceeded"] == []


def test_failed_run_reports_its_error_output(tmp_path):
    done = run_ab(make_tree(tmp_path / "a", 1.0), tmp_path, "--", "toy")
    assert done.returncode == 1
    assert "No module named" in done.stderr


def test_negative_limit_is_for_figures_that_must_not_fall():
    lower = compare_figure("continuity", [1.0, 1.0], [0.9, 0.9])
    assert find_exceeded([lower], [("continuity", -1)]) == ["continuity"]
    assert find_exceeded([lower], [("continuity", 1)]) == []


def test_limit_without_a_figure_is_an_error():
    with pytest.raises(ValueError, match="no figure's name ends in 'ttfa'"):
        find_exceeded([compare_figure("step_ms", [1.0, 1.0], [1.0, 1.0])], [("ttfa", 3)])


def test_flatten_keeps_numbers_alone():
    value = {"a": {"b": 1, "c": None}, "d": [2.5, "x", True]}
    assert dict(flatten(value)) == {"a.b": 1.0, "d.0": 2.5}


def test_benchmark_without_output_is_an_error():
    with pytest.raises(ValueError, match="printed nothing"):
        read_figures("")


TREE = Path(__file__).parents[2]


def test_scripted_engine_serves_a_session() -> None:
    command = [sys.executable, "-m", "benchmarks.gateway_cpu", "--sessions", "1", "--responses", "1"]
    done = subprocess.run(command, cwd=TREE, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (run,) = json.loads(done.stdout.strip().splitlines()[-1])["levels"]
    assert (run["responses"], run["errors"]) == (1, {})
