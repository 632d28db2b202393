"""The programs of ``examples/`` for vendors' wires and frameworks, run as their first lines say."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sessions.audio.pcm import s16_to_float
from sessions.audio.recordings.decode import decode_recording
from tests.realtime.certificates import self_signed
from tests.realtime.server_process import ServerProcess, server
from tests.sdk.client_matrix import ROOT, RUN_TIMEOUT_S, existing_environment, node_folder
from tests.sdk.test_clients import SCRIPT

pytestmark = [pytest.mark.sdk, pytest.mark.timeout(180)]

EXAMPLES = ROOT / "examples"
RATE = 24_000
TEXT = "Hello there, how are you?"
LEAST_S, LEAST_PEAK = 1.0, 0.03
PYTHON = {
    "elevenlabs_tts.py": ("sdks", "http", "mp3", ()),
    "cartesia_tts.py": ("sdks", "http", "wav", ()),
    "deepgram_tts.py": ("sdks", "http", "wav", ()),
    "openai_realtime.py": ("sdks", "http", "wav", ()),
    "rime.py": ("kyutai", "ws", "wav", ()),
    "inworld.py": ("kyutai", "ws", "wav", ()),
    "kyutai.py": ("kyutai", "ws", "wav", ()),
    "vllm_omni.py": ("kyutai", "ws", "wav", ()),
    "native.py": ("pipecat", "ws", "wav", (TEXT,)),
    "pipecat_tts.py": ("pipecat", "ws", "wav", (TEXT,)),
    "livekit_tts.py": ("livekit", "ws", "wav", (TEXT,)),
}
JAVASCRIPT = {
    "elevenlabs_tts.mjs": ("http", "mp3"),
    "cartesia_tts.mjs": ("https", "pcm"),
    "deepgram_tts.mjs": ("http", "pcm"),
    "openai_realtime.mjs": ("https", "pcm"),
    "livekit_tts.mjs": ("http", "pcm"),
}
NAMES = ("ELEVENLABS_API_KEY", "ELEVEN_API_KEY", "CARTESIA_API_KEY", "DEEPGRAM_API_KEY", "OPENAI_API_KEY")


@pytest.fixture(scope="module")
def plain() -> Iterator[ServerProcess]:
    with server(SCRIPT, speech__aligner="even") as started:
        yield started


@pytest.fixture(scope="module")
def over_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Path]]:
    certificate, key = self_signed(tmp_path_factory.mktemp("tls"))
    tls = {"listen__tls_certificate": str(certificate), "listen__tls_key": str(key)}
    with server(SCRIPT, speech__aligner="even", **tls) as started:
        yield started, certificate


@pytest.mark.parametrize("program", PYTHON)
def test_a_python_example(plain: ServerProcess, tmp_path: Path, program: str) -> None:
    environment, scheme, kind, texts = PYTHON[program]
    python = existing_environment(environment) / "bin" / "python"
    spoken = tmp_path / f"hello.{kind}"
    run([python, EXAMPLES / program, plain.url.replace("ws", scheme, 1), *texts, spoken])
    check(spoken)


@pytest.mark.parametrize("program", JAVASCRIPT)
def test_a_javascript_example(
    plain: ServerProcess, over_tls: tuple[ServerProcess, Path], tmp_path: Path, program: str
) -> None:
    environment = existing_environment("node")
    scheme, kind = JAVASCRIPT[program]
    secure, certificate = over_tls
    url = (secure if scheme == "https" else plain).url.replace("ws", scheme, 1)
    spoken = tmp_path / f"hello.{kind}"
    with node_folder(environment) as folder:
        shutil.copy(EXAMPLES / program, folder)
        run(["node", Path(folder) / program, url, spoken], NODE_EXTRA_CA_CERTS=str(certificate))
    check(spoken)


def run(command: list[str | Path], **variables: str) -> None:
    given = dict.fromkeys(NAMES, "any") | variables
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False, env=os.environ | given
    )
    assert done.returncode == 0, done.stderr[-2_000:]


def check(spoken: Path) -> None:
    data = spoken.read_bytes()
    pcm = s16_to_float(np.frombuffer(data, "<i2")) if spoken.suffix == ".pcm" else decode_recording(data, RATE, 60.0)
    assert len(pcm) > LEAST_S * RATE
    assert np.abs(pcm).max() > LEAST_PEAK
