"""The clients themselves: each runs in an environment of its own, speaks to a server process and tells what it got.

``tests/sdk/run`` makes the environments and runs these.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import httpx2 as httpx
import pytest
from websockets.sync.client import ClientConnection, connect

from tests.realtime.processes import Server, server

pytestmark = [pytest.mark.sdk, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]
CLIENTS = Path(__file__).parent / "clients"
ENVIRONMENTS = Path(os.environ.get("VOICEWIRE_SDK_ENVS", ROOT / ".sdk-envs"))
KEY = "a-key-of-enough-characters"
SCRIPT = {"ms_per_char": 60.0, "first_chunk_s": 0.02, "real_time_factor": 0.1}
RUN_TIMEOUT_S = 150
WORD_SLACK_S = 0.5
LEAST_PEAK = 1_000

PIPECAT = {
    "elevenlabs": ("sentence", "token", "interrupt"),
    "elevenlabs_dialogue": ("sentence", "interrupt"),
    "elevenlabs_http": ("sentence",),
    "cartesia": ("sentence", "token", "interrupt"),
    "cartesia_http": ("sentence",),
    "deepgram": ("sentence", "token", "interrupt"),
    "deepgram_http": ("sentence",),
    "deepgram_flux": ("token", "interrupt"),
    "native": ("token", "interrupt"),
    "openai": ("sentence",),
    "realtime": ("items",),
    "rime": ("sentence", "token", "interrupt"),
    "rime_v1": ("sentence", "token", "interrupt"),
    "rime_v1_json": ("token",),
    "inworld": ("sentence", "token", "interrupt"),
}
LIVEKIT = {
    "native": ("stream", "cancel", "synthesize"),
    "elevenlabs": ("stream", "cancel", "synthesize"),
    "elevenlabs_pcm": ("stream", "cancel"),
    "elevenlabs_opus": ("stream",),
    "elevenlabs_v3": ("stream", "cancel", "synthesize"),
    "cartesia": ("stream", "cancel", "synthesize"),
    "deepgram": ("stream", "cancel", "synthesize"),
    "deepgram_v2": ("stream", "cancel", "synthesize"),
    "openai": ("synthesize",),
    "openai_tts1": ("synthesize",),
    "realtime": ("items", "interrupt"),
    "rime": ("stream", "cancel"),
    "rime_v1": ("stream", "cancel"),
    "inworld": ("stream", "cancel", "synthesize"),
}
VENDORS = {
    "elevenlabs": ("realtime", "realtime_mp3", "stream", "convert", "timestamps"),
    "cartesia": ("websocket", "flush", "cancel", "contexts", "bytes", "sse", "float"),
    "deepgram": ("v1", "clear", "http", "v2", "v2_interrupt"),
}
REALTIME = {"openai": ("items", "tokens", "interrupt")}
KYUTAI = {"kyutai": ("words", "interrupt")}
JAVASCRIPT = {
    "elevenlabs": ("stream", "timestamps"),
    "cartesia": ("websocket", "cancel", "bytes"),
    "deepgram": ("v1", "clear", "v2", "v2_interrupt"),
    "openai": ("items",),
}
TIMED = {
    ("pipecat", "elevenlabs"),
    ("pipecat", "elevenlabs_dialogue"),
    ("pipecat", "elevenlabs_http"),
    ("pipecat", "cartesia"),
    ("livekit", "elevenlabs"),
    ("livekit", "elevenlabs_pcm"),
    ("livekit", "elevenlabs_opus"),
    ("livekit", "elevenlabs_v3"),
    ("livekit", "cartesia"),
    ("livekit", "native"),
    ("pipecat", "native"),
    ("livekit", "rime"),
    ("livekit", "inworld"),
    ("pipecat", "rime"),
    ("pipecat", "inworld"),
    ("kyutai", "kyutai"),
}
TIMED_MODES = {"websocket", "flush", "cancel", "contexts", "timestamps"}


def runs() -> Iterator[tuple[str, str, str]]:
    families = {"pipecat": PIPECAT, "livekit": LIVEKIT, "vendor": VENDORS, "realtime": REALTIME, "kyutai": KYUTAI}
    for environment, services in families.items():
        yield from ((environment, service, mode) for service, modes in services.items() for mode in modes)


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with server(SCRIPT, auth__api_keys=f"agent:{KEY}", speech__aligner="even") as started:
        yield started


@pytest.mark.parametrize(("environment", "service", "mode"), list(runs()))
def test_a_client_speaks_and_goes_on(running: Server, environment: str, service: str, mode: str) -> None:
    told = run(environment, service, running.url.replace("ws", "http", 1), mode)
    assert told["errors"] == []
    assert told["turns"]
    for turn in told["turns"]:
        assert 1.0 < turn["duration_s"] < 12.0
        assert turn["peak"] > LEAST_PEAK
        if mode != "synthesize" and is_timed(environment, service, mode):
            check_words(turn)


def test_livekit_that_is_told_429_comes_again() -> None:
    limits = {"auth__api_keys": f"agent:{KEY}", "speech__aligner": "even", "limits__max_connections": 1}
    with server(SCRIPT, **limits) as started:
        shown = {"X-API-Key": KEY}
        with connect(f"{started.url}/tts/websocket", additional_headers=shown, compression=None, proxy=None) as holder:
            leaves = threading.Thread(target=leave_after_a_refusal, args=(started, holder))
            leaves.start()
            told = run("livekit", "cartesia", started.url.replace("ws", "http", 1), "stream")
            leaves.join()
        assert [turn["peak"] > LEAST_PEAK for turn in told["turns"]] == [True, True]


def leave_after_a_refusal(started: Server, holder: ClientConnection) -> None:
    """Its place is another's once that one was refused."""
    metrics = f"{started.url.replace('ws', 'http', 1)}/metrics"
    for _ in range(RUN_TIMEOUT_S * 10):
        told = httpx.get(metrics, headers={"X-API-Key": KEY}, trust_env=False).text
        if 'refusals_total{code="too_many_connections"}' in told:
            break
        time.sleep(0.1)
    holder.close()


def is_timed(environment: str, service: str, mode: str) -> bool:
    return (environment, service) in TIMED or (environment == "vendor" and mode in TIMED_MODES)


def check_words(turn: dict) -> None:
    """Each word once and in order, with times that rise and stay within the audio."""
    assert [word[0].strip() for word in turn["words"]] == turn["text"].split()
    times_s = [word[1] * (1e-9 if isinstance(word[1], int) else 1) for word in turn["words"]]
    assert all(earlier <= later for earlier, later in pairwise(times_s))
    assert times_s[-1] - times_s[0] <= turn["duration_s"] + WORD_SLACK_S


@pytest.fixture(scope="module")
def over_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    """Some packages make ``wss`` of every address."""
    certificate, key = self_signed(tmp_path_factory.mktemp("tls"))
    tls = {"listen__tls_certificate": str(certificate), "listen__tls_key": str(key)}
    with server(SCRIPT, auth__api_keys=f"agent:{KEY}", **tls) as started:
        yield started, certificate


def test_elevenlabs_over_tls(over_tls: tuple[Server, Path]) -> None:
    started, certificate = over_tls
    url = started.url.replace("ws", "https", 1)
    told = run("vendor", "elevenlabs", url, "realtime", SSL_CERT_FILE=str(certificate))
    assert all(turn["peak"] > LEAST_PEAK for turn in told["turns"])


@pytest.mark.parametrize(("service", "mode"), [(name, mode) for name, modes in JAVASCRIPT.items() for mode in modes])
def test_a_javascript_client_over_tls(over_tls: tuple[Server, Path], tmp_path: Path, service: str, mode: str) -> None:
    modules = ENVIRONMENTS / "node" / "node_modules"
    if not modules.exists():
        pytest.skip("no environment node: tests/sdk/run makes it where npm is installed")
    started, certificate = over_tls
    client = "realtime_client.mjs" if service == "openai" else "vendor_client.mjs"
    script = Path(shutil.copy(CLIENTS / client, tmp_path))
    (tmp_path / "node_modules").symlink_to(modules)
    url = started.url.replace("ws", "https", 1)
    told = finished(["node", script, service, url, mode], NODE_EXTRA_CA_CERTS=str(certificate))
    assert len(told["turns"]) == 2
    for turn in told["turns"]:
        assert 1.0 < turn["duration_s"] < 12.0
        assert turn["peak"] > LEAST_PEAK
        if mode in TIMED_MODES:
            check_words(turn)


def self_signed(folder: Path) -> tuple[Path, Path]:
    certificate, key = folder / "cert.pem", folder / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=voicewire"
    where = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command.split(), *where], check=True, capture_output=True)
    return certificate, key


def run(environment: str, service: str, url: str, mode: str, **variables: str) -> dict:
    folder = {"vendor": "sdks", "realtime": "sdks"}.get(environment, environment)
    python = ENVIRONMENTS / folder / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no environment {folder}: tests/sdk/run makes it")
    return finished([python, CLIENTS / f"{environment}_client.py", service, url, mode], **variables)


def finished(command: list[str | Path], **variables: str) -> dict:
    """The last line that a client prints."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False, env=os.environ | variables
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    return json.loads(done.stdout.splitlines()[-1])
