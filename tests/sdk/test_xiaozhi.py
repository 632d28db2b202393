"""The package xiaozhi-client as a device, and an agent who speaks to it through the text side of calls."""

from __future__ import annotations

import json
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

from tests.realtime.server_process import server
from tests.sdk.client_matrix import KEY, PROGRAMS, RUN_TIMEOUT_S, existing_environment

pytestmark = [pytest.mark.sdk, pytest.mark.timeout(180)]

SCRIPT = {"ms_per_char": 60.0, "first_chunk_s": 0.02, "real_time_factor": 0.1}
LEAST_PEAK = 1_000
WAIT_S = 30
ANSWERS = {"one": "Hello there, this is said to a device.", "two": "This answer is long. " * 20}


def python() -> Path:
    return existing_environment("xiaozhi") / "bin" / "python"


def libopus() -> str:
    """The one that we bring along; the package takes whatever the system has."""
    spec = find_spec("opuslib_next")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "_native" / "libopus.so")


def attend(agent: ClientConnection) -> list[dict[str, Any]]:
    """Answer what is written until the device has left; what became of the replies."""
    ends = []
    while True:
        event = json.loads(agent.recv(WAIT_S))
        match event["type"]:
            case "call.text":
                say = {"type": "say", "call_id": event["call_id"], "text": ANSWERS[event["text"]]}
                agent.send(json.dumps(say))
            case "reply.played" | "reply.interrupted" | "reply.failed":
                ends.append(event)
            case "call.hung_up":
                return ends


def test_a_device_is_spoken_to_and_breaks_in() -> None:
    with server(SCRIPT, auth__api_keys=f"agent:{KEY}", speech__aligner="even") as started:
        shown = {"X-API-Key": KEY}
        with connect(f"{started.url}/v1/calls", additional_headers=shown, compression=None, proxy=None) as agent:
            command = [python(), PROGRAMS / "xiaozhi_device.py", f"{started.url}/xiaozhi/v1/?token={KEY}", libopus()]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as device:
                played, cut = attend(agent)
                told, errors = device.communicate(timeout=RUN_TIMEOUT_S)
    assert device.returncode == 0, errors[-2_000:]
    heard = json.loads(told.splitlines()[-1])
    first, second = heard["turns"]
    assert heard["hello"]["audio_params"]["frame_duration"] == 60
    assert played["type"] == "reply.played"
    assert first["duration_s"] == pytest.approx(played["played_ms"] / 1_000, abs=0.3)
    assert (cut["type"], cut["cause"]) == ("reply.interrupted", "caller")
    assert 0.9 < second["duration_s"] < 4.0
    assert abs(second["duration_s"] - cut["heard"]["played_ms"] / 1_000) < 1.0
    assert first["peak"] > LEAST_PEAK
    assert second["peak"] > LEAST_PEAK
    assert heard["files"] == 2
