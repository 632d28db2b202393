"""A server in a process of its own: signals, and what is left in its log."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest
from websockets.exceptions import InvalidStatus

from realtime.client import open_session
from realtime.protocol import events as ev
from realtime.signals import STOP_SIGNALS, run_until_signal
from tests.fork_server import ForkedProcess
from tests.realtime import server_process
from tests.realtime.live_server import close_code, hear, next_of, speak

# Tells how many objects no collection looks through, and how many one would.
KEPT_AT_START = """
import asyncio, gc, os, signal, sys
from realtime.config import load_config
from realtime.app import create_app, serve
from tests.fakes.engine import FakeScript, FakeSpeechEngine

def ready(port):
    print(gc.get_freeze_count(), len(gc.get_objects()))
    os.kill(os.getpid(), signal.SIGTERM)

flags = {"listen.port": 0, "debug.constants.limits.gc_freeze_on_start": sys.argv[1] == "yes"}
config = load_config(environment={"VOICEWIRE_DEBUG": "1"}, flags=flags)
asyncio.run(serve(config, create_app(config, FakeSpeechEngine(FakeScript())), ready))
"""

TEXT = "Hello there, this is a reply that goes on for a while."


class Server(NamedTuple):
    process: ForkedProcess
    url: str

    async def ended(self) -> tuple[int, list[dict[str, object]]]:
        """Exit status, and the lines of its log."""
        status = await asyncio.to_thread(self.process.wait, 10)
        return status, [json.loads(line) for line in self.process.stderr.read().splitlines()]


@contextmanager
def server(script: dict[str, object] | None = None, **flags: object) -> Iterator[Server]:
    with server_process.server(script, stderr=subprocess.PIPE, **flags) as running:
        yield Server(*running)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_the_server_under_load(how: signal.Signals) -> None:
    with server({"first_chunk_s": 0.01, "real_time_factor": 0.3}) as running:
        speaking = await asyncio.gather(*(open_session(running.url) for _ in range(4)))
        idle = await open_session(running.url)
        for client in speaking:
            await client.send(
                ev.ResponseCreate(response_id="r", settings=ev.NativeSpeechSettings(pace="burst"), text=TEXT, end=True)
            )
            await next_of(client, ev.AudioMessage)
        running.process.send_signal(how)
        last = await next_of(idle, ev.ErrorEvent)
        assert (last.code, last.retryable) == ("draining", True)
        with pytest.raises(InvalidStatus) as refused:
            await open_session(running.url)
        assert refused.value.response.status_code == 503
        for client in speaking:
            done = (await hear(client)).done
            assert (done.status, done.error) == ("completed", None)
            assert done.audio_ms > 2_000
            assert await close_code(client) == 1012
        await idle.aclose()
        status, log = await running.ended()
        assert status == 0
        assert not [line for line in log if line["level"] in ("warning", "error")]


async def test_a_drain_has_an_end() -> None:
    with server({"first_chunk_s": 60.0}, listen__drain_timeout_s=0.3) as running:
        client = await open_session(running.url)
        await client.send(ev.ResponseCreate(response_id="r", text=TEXT))
        await next_of(client, ev.ResponseCreated)
        running.process.terminate()
        last = await next_of(client, ev.ErrorEvent)
        assert last.code == "draining"
        await client.aclose()
        assert (await running.ended())[0] == 0


async def test_a_second_ctrl_c_waits_for_nothing_that_is_spoken() -> None:
    with server({"first_chunk_s": 60.0}) as running:
        client = await open_session(running.url)
        await client.send(ev.ResponseCreate(response_id="r", text=TEXT))
        await next_of(client, ev.ResponseCreated)
        for _ in range(2):
            running.process.send_signal(signal.SIGINT)
            await asyncio.sleep(0.2)
        last = await next_of(client, ev.ErrorEvent)
        assert last.code == "draining"
        assert await close_code(client) == 1012
        await client.aclose()
        status, log = await running.ended()
        assert status == 0
        assert not [line for line in log if line["level"] in ("warning", "error")]


async def test_killed_server_is_detected_and_can_restart() -> None:
    with server() as running:
        client = await open_session(running.url)
        await client.send(ev.ResponseCreate(response_id="r", text=TEXT))
        await next_of(client, ev.ResponseCreated)
        running.process.kill()
        async with asyncio.timeout(2):
            async for _ in client:
                pass
        assert client.close_code == 1006
    with server(listen__port=int(running.url.rpartition(":")[2])) as again:
        async with await open_session(again.url) as client:
            assert (await speak(client, TEXT[:12])).done.status == "completed"


async def test_log_has_ids_and_no_text() -> None:
    with server() as running:
        async with await open_session(running.url) as client:
            assert (await speak(client, "a secret sentence")).done.status == "completed"
        running.process.terminate()
        _, log = await running.ended()
    assert {line["message"] for line in log} >= {"ready", "listening", "session opened", "session closed", "draining"}
    assert client.created.session_id in {line.get("session_id") for line in log}
    assert "secret" not in json.dumps(log)


@pytest.mark.parametrize("kept", ["yes", "no"])
def test_what_is_there_at_the_start_is_left_out_of_collections(kept: str) -> None:
    told = subprocess.run([sys.executable, "-c", KEPT_AT_START, kept], capture_output=True, text=True, check=True)
    num_kept, num_looked_through = map(int, told.stdout.split())
    if kept == "yes":
        assert num_kept > 10_000 > 10 * num_looked_through
    else:
        assert num_kept == 0
        assert num_looked_through > 10_000


@pytest.mark.parametrize("number", STOP_SIGNALS)
async def test_a_signal_in_the_last_moment_of_a_start_ends_it_too(number: signal.Signals) -> None:
    before = signal.getsignal(number)

    async def start() -> None:
        await asyncio.sleep(0.01)
        os.kill(os.getpid(), number)

    assert not await run_until_signal(start())
    assert signal.getsignal(number) == before


async def test_start_without_signal_completes() -> None:
    assert await run_until_signal(asyncio.sleep(0.01))
