"""A real Prometheus reads a server under load; every query of the dashboard and of the alerts has an answer, and each
panel can be plotted."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import yaml

from benchmarks.dashboard_plot import Span, draw_dashboard, read_range, without_variables
from realtime.client import open_session
from realtime.protocol import events as ev
from tests.realtime.server_process import server
from tests.test_dashboards import ALERTS, DASHBOARD, RULES, TARGETS

pytestmark = [pytest.mark.cluster("prometheus"), pytest.mark.timeout(300)]
# Slower than real time after the first chunk, so that listeners have gaps.
SLOW = {"ms_per_char": 20.0, "first_chunk_s": 0.05, "real_time_factor": 1.3}
TEXT = "One two three four five six seven eight nine ten. "


@pytest.fixture
def prometheus(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> Iterator[Callable[[str], str]]:
    """Start Prometheus on a server's address; returns its own address."""
    [port] = free_ports(1)
    running: list[subprocess.Popen[bytes]] = []

    def start(target: str) -> str:
        jobs = [{"job_name": "voicewire", "static_configs": [{"targets": [target]}]}]
        config = {"global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "scrape_configs": jobs}
        (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config | {"rule_files": [str(RULES)]}))
        program = shutil.which("prometheus")
        assert program is not None
        options = [f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
        listen = f"--web.listen-address=127.0.0.1:{port}"
        running.append(subprocess.Popen([program, *options, listen], stderr=subprocess.DEVNULL))
        return f"http://127.0.0.1:{port}"

    yield start
    for process in running:
        process.kill()
        process.wait()


async def speak(url: str) -> None:
    settings = ev.NativeSpeechSettings(format=ev.NativeAudioFormat(encoding="pcm_s16le", sample_rate=16_000))
    async with await open_session(url) as client:
        await client.send(ev.ResponseCreate(settings=settings, text=TEXT, end=True))
        async for event in client:
            if isinstance(event, ev.ResponseDone):
                return


async def query(http: httpx.AsyncClient, expression: str) -> list[Any]:
    try:
        answer = (await http.get("/api/v1/query", params={"query": expression})).json()
    except (httpx.TransportError, ValueError):  # it is starting, and refuses or says so in plain text
        return []
    assert answer["status"] == "success", f"{expression}: {answer}"
    return answer["data"]["result"]


async def unanswered(http: httpx.AsyncClient) -> list[str]:
    """Return the queries of the dashboard that find nothing."""
    expressions = [without_variables(expression) for _, expression in TARGETS]
    return [expression for expression in expressions if not await query(http, expression)]


def plot(address: str) -> str:
    span = Span(time.time() - 60, time.time())
    return draw_dashboard(DASHBOARD, partial(read_range, address, span), span)


async def answered(http: httpx.AsyncClient, expression: str) -> None:
    while not await query(http, expression):
        await asyncio.sleep(0.5)


async def panels_without_line(http: httpx.AsyncClient) -> list[str]:
    panels = (await asyncio.to_thread(plot, str(http.base_url).rstrip("/"))).split("<g>")[1:]
    assert len(panels) == len(DASHBOARD["panels"])
    return [panel for panel in panels if "<polyline" not in panel]


async def test_queries_have_answers_under_load(prometheus: Callable[[str], str]) -> None:
    with server(SLOW) as running:
        address = running.url.removeprefix("ws://")
        async with httpx.AsyncClient(base_url=prometheus(address), timeout=60, trust_env=False) as http:
            stopped = asyncio.Event()

            async def load() -> None:
                while not stopped.is_set():
                    await speak(running.url)
                    async with httpx.AsyncClient(base_url=f"http://{address}", timeout=60, trust_env=False) as client:
                        await client.post("/v1/audio/speech", content=b"{")

            listeners = [asyncio.create_task(load()) for _ in range(4)]
            missing = [""]
            with suppress(TimeoutError):
                async with asyncio.timeout(120):
                    while missing := await unanswered(http):
                        await asyncio.sleep(1)
            assert missing == []
            # The engine of this server is slow, and the alert of that is on its way.
            async with asyncio.timeout(120):
                await answered(http, 'ALERTS{alertname="VoicewireEngineUnderruns"}')
            states = (await http.get("/api/v1/rules")).json()["data"]["groups"][0]["rules"]
            assert [rule["name"] for rule in states] == [alert["alert"] for alert in ALERTS]
            assert {rule["health"] for rule in states} == {"ok"}
            # A line needs two points, some of which come late.
            async with asyncio.timeout(120):
                while await panels_without_line(http):
                    await asyncio.sleep(2)
            stopped.set()
            await asyncio.gather(*listeners)
