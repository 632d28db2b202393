"""Vendors' realtime clients talk with the built-in agent: ten spoken turns, one of which interrupts an answer."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from sessions.audio.pcm import pcm_to_s16le
from sessions.audio.resampler import Resampler
from tests.realtime.agent.stub_backend import ScriptedAnswer, stub_backend_thread
from tests.realtime.server_process import server
from tests.sdk.client_matrix import KEY, PROGRAMS, RUN_TIMEOUT_S, existing_environment

pytestmark = [pytest.mark.sdk, pytest.mark.timeout(180)]

SCRIPT = {"ms_per_char": 40.0, "first_chunk_s": 0.02, "real_time_factor": 0.1}
NUM_TURNS = 10
RATE = 24_000
LONG = "This is a long answer that goes on and on. " * 8


@pytest.fixture(scope="module")
def turn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A spoken turn with the silence that ends it."""
    from training.flite import SAMPLE_RATE_HZ, available, synthesize

    if not available():
        pytest.skip("flite is not installed")
    pcm = Resampler(SAMPLE_RATE_HZ, RATE).push(np.asarray(synthesize("Wait a moment.", "slt").pcm, np.float32) / 32768)
    file = tmp_path_factory.mktemp("turn") / "turn.raw"
    file.write_bytes(pcm_to_s16le(pcm) + bytes(2 * RATE))
    return file


@pytest.mark.parametrize("package", ["agents", "livekit", "pipecat"])
def test_package_holds_a_conversation(turn: Path, package: str) -> None:
    python = existing_environment(package) / "bin" / "python"
    with stub_backend_thread() as backend:
        backend.answers.append(ScriptedAnswer(LONG, speed=10))
        backend.answers += [ScriptedAnswer(f"Answer {number}.") for number in range(1, NUM_TURNS)]
        backend.transcripts += [f"Question {number}?" for number in range(NUM_TURNS)]
        flags = {"agent__llm_url": backend.url, "agent__stt_url": backend.url, "auth__api_keys": f"agent:{KEY}"}
        with server(SCRIPT, speech__aligner="even", **flags) as started:
            url = started.url.replace("ws", "http", 1)
            command = [python, PROGRAMS / f"{package}_talk.py", url, turn, str(NUM_TURNS)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["errors"] == []
    first, *others = result["answers"]
    assert first["interruptions"] >= 1
    assert len(others) == NUM_TURNS - 1
    assert all(answer["audio_bytes"] for answer in others)
    roles: dict[str, list[str]] = {"user": [], "assistant": [], "system": []}
    for message in backend.chats[-1]["messages"]:
        roles[message["role"]].append(message["content"])
    assert "\n".join(roles["user"]).split("\n") == [f"Question {number}?" for number in range(NUM_TURNS)]
    heard = [text for text in roles["assistant"] if not LONG.startswith(text)]
    assert heard == [f"Answer {number}." for number in range(1, NUM_TURNS - 1)]
    assert all(len(text) < len(LONG) / 2 for text in roles["assistant"])
