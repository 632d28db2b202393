"""The gateway benchmark runs with its scripted engine, which speaks the protocol that the server's client expects."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

TREE = Path(__file__).parents[2]


def test_scripted_engine_serves_a_session() -> None:
    command = [sys.executable, "-m", "benchmarks.gateway_cpu", "--sessions", "1", "--responses", "1"]
    done = subprocess.run(command, cwd=TREE, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (run,) = json.loads(done.stdout.strip().splitlines()[-1])["levels"]
    assert (run["responses"], run["errors"]) == (1, {})
