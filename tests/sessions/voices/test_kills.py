"""A writer may be killed at any moment: no voice that it reported is lost, and none is there by halves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from sessions.voices.store import TEMP_SUFFIX, VoiceStore
from tests.sessions.voices.voices import voice

ROOT = Path(__file__).parents[3]
NUM_KILLS = 200


def test_200_kills_in_mid_write(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.sessions.voices.crash_writers", str(tmp_path), str(NUM_KILLS)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True, timeout=110)
    told = json.loads(done.stdout)
    store = VoiceStore(tmp_path)
    names = [manifest.name for manifest in store.list("alice")]
    assert told["num_halves"] > 20, "the kills came when nothing was being written"
    assert len(told["stored"]) >= NUM_KILLS // 8
    assert {path.stem for path in tmp_path.glob("*/*.safetensors")} == set(names), "half a voice"
    assert set(told["stored"]) <= set(names)
    assert len(names) - len(told["stored"]) <= NUM_KILLS, "at most one a writer had no time to say so"
    for name in names:
        assert store.find("alice", name) == voice(name)
    store.add(voice("after"))
    assert not list(tmp_path.glob(f"*/*{TEMP_SUFFIX}"))
