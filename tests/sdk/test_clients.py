"""The clients themselves: each runs in an environment of its own, speaks to a server process and tells what it got.

``tests/sdk/run`` makes the environments and runs these.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from websockets.sync.client import ClientConnection, connect

from tests.realtime.certificates import self_signed
from tests.realtime.server_process import ServerProcess, server
from tests.realtime.test_resume import cutting_proxy
from tests.sdk.client_matrix import KEY, RUN_TIMEOUT_S, Run, all_runs

pytestmark = [pytest.mark.sdk, pytest.mark.timeout(180)]

SCRIPT = {"ms_per_char": 60.0, "first_chunk_s": 0.02, "real_time_factor": 0.1, "info": {"takes_instruct": False}}
SETTINGS = {"auth__api_keys": f"agent:{KEY}", "speech__aligner": "even"}
WORD_SLACK_S = 0.5
LEAST_PEAK = 1_000
LEAST_NS = 1e6


def named(run: Run) -> str:
    return "-".join(run)


def http(started: ServerProcess) -> str:
    return started.url.replace("ws", "http", 1)


@pytest.fixture(scope="module")
def running() -> Iterator[ServerProcess]:
    with server(SCRIPT, **SETTINGS) as started:
        yield started


@pytest.fixture(scope="module")
def over_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Path]]:
    certificate, key = self_signed(tmp_path_factory.mktemp("tls"))
    tls = {"listen__tls_certificate": str(certificate), "listen__tls_key": str(key)}
    with server(SCRIPT, **SETTINGS, **tls) as started:
        yield started, certificate


@pytest.mark.parametrize("run", all_runs(needs_tls=False), ids=named)
def test_a_client_speaks_and_goes_on(running: ServerProcess, run: Run) -> None:
    check(run, run.speak(http(running)))


def test_open_webui_reads_the_voices_of_a_server_without_keys() -> None:
    with server(SCRIPT) as started:
        run = Run("open-webui", "openai", "voices")
        check(run, run.speak(http(started)))


TLS_RUNS = [*all_runs(needs_tls=True), Run("vendor", "elevenlabs", "realtime")]


@pytest.mark.parametrize("run", TLS_RUNS, ids=named)
def test_a_client_speaks_over_tls(over_tls: tuple[ServerProcess, Path], run: Run) -> None:
    started, certificate = over_tls
    trusted = {"NODE_EXTRA_CA_CERTS": str(certificate), "SSL_CERT_FILE": str(certificate)}
    check(run, run.speak(started.url.replace("ws", "https", 1), **trusted))


def check(run: Run, told: dict[str, Any]) -> None:
    assert told["errors"] == []
    assert told["turns"]
    for turn in told["turns"]:
        assert 1.0 < turn["duration_s"] < 12.0
        assert turn["peak"] > LEAST_PEAK
        if run.is_timed:
            check_words(turn)


def check_words(turn: dict[str, Any]) -> None:
    """Each word once and in order, with times that rise and stay within the audio."""
    assert [word[0].strip() for word in turn["words"]] == turn["text"].split()
    times_s = [seconds(word[1]) for word in turn["words"]]
    assert all(earlier <= later for earlier, later in pairwise(times_s))
    assert times_s[-1] - times_s[0] <= turn["duration_s"] + WORD_SLACK_S


def seconds(told: float) -> float:
    """pipecat tells ns of its clock; all others seconds, which JavaScript prints without a point where whole."""
    return told * 1e-9 if told > LEAST_NS else told


REFUSED = [
    Run("livekit", "cartesia", "stream"),
    *(Run("pipecat", name, "again") for name in ("cartesia", "elevenlabs")),
]


@pytest.mark.parametrize("run", REFUSED, ids=named)
def test_a_client_that_is_told_429_comes_again(run: Run) -> None:
    with server(SCRIPT, **SETTINGS, limits__max_connections=1) as started:
        shown = {"X-API-Key": KEY}
        with connect(f"{started.url}/tts/websocket", additional_headers=shown, compression=None, proxy=None) as holder:
            leaves = threading.Thread(target=leave_after_a_refusal, args=(started, holder))
            leaves.start()
            told = run.speak(http(started))
            leaves.join()
        assert [turn["peak"] > LEAST_PEAK for turn in told["turns"]] == [True, True]


def leave_after_a_refusal(started: ServerProcess, holder: ClientConnection) -> None:
    """Its place is another's once that one was refused."""
    for _ in range(RUN_TIMEOUT_S * 10):
        told = httpx.get(f"{http(started)}/metrics", headers={"X-API-Key": KEY}, trust_env=False).text
        if 'refusals_total{code="too_many_connections"}' in told:
            break
        time.sleep(0.1)
    holder.close()


PLUGINS = [Run("pipecat", "native", "token"), Run("livekit", "native", "stream")]
NUM_CUTS, MIN_CUT_BYTES, MAX_CUT_BYTES = 4, 2_500, 6_000


@pytest.mark.parametrize("run", PLUGINS, ids=named)
async def test_plugins_resume_replies_whose_connection_is_lost(running: ServerProcess, run: Run) -> None:
    whole = await asyncio.to_thread(run.speak, http(running))
    rng = random.Random(1)
    async with cutting_proxy(int(running.url.rpartition(":")[2])) as (proxy, url):
        proxy.budgets = [rng.randrange(MIN_CUT_BYTES, MAX_CUT_BYTES) for _ in range(NUM_CUTS)]
        cut = await asyncio.to_thread(run.speak, url.replace("ws", "http", 1))
    check(run, cut)
    assert not proxy.budgets
    assert [turn["duration_s"] for turn in cut["turns"]] == [turn["duration_s"] for turn in whole["turns"]]
    assert [len(turn["words"]) for turn in cut["turns"]] == [len(turn["words"]) for turn in whole["turns"]]
