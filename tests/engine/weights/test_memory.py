"""A loaded checkpoint weighs little more than its weights, measured in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.checkpoints import TINY, write_checkpoint

LARGE = TINY | {
    "talker": dict(hidden=512, intermediate=1536, layers=8, heads=8, kv_heads=4, head_dim=64, text_hidden=512),
    "predictor": dict(hidden=512, intermediate=1024, layers=2, heads=8, kv_heads=4, head_dim=64),
    "text_rows": 10_000,
}
MAX_LOADED = 1.15
ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory of a process as Linux tells it")
def test_memory_after_loading_is_at_most_15_percent_above(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, LARGE, task="base")
    command = [sys.executable, "-m", "benchmarks.load_memory", "--model", str(folder), "--device", "cpu"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    found = json.loads(shown.splitlines()[-1])
    assert found["weights_mb"] > 100
    assert found["loaded_by_weights"] <= MAX_LOADED, shown
    assert found["loaded_by_weights"] > 0.8, shown
