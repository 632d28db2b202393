"""The command with real engines: the embedded voice behind a gateway, from the file to the last process."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from websockets.exceptions import InvalidStatus

from realtime.client import open_session
from realtime.protocol import events as ev
from tests.cluster.conftest import command_of, marked
from tests.realtime.live_server import SpokenResponse, hear

pytestmark = [pytest.mark.cluster("ray", "haproxy"), pytest.mark.timeout(540)]

TEXT = "The quick brown fox jumps over the lazy dog. " * 3


def run_command(action: str, file: Path, expected: int = 0) -> str:
    """Run ``voicewire cluster``; returns what it prints."""
    import ray

    done = subprocess.run(
        [sys.executable, "-m", "realtime.cli", "cluster", action, str(file)],
        env={**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == expected, done.stdout
    return done.stdout


class Overloaded(Exception):
    """A response that the engine refused, since its steps take too long for one more."""


async def say(url: str, began: asyncio.Event) -> SpokenResponse:
    async with await open_session(url) as client:
        await client.send(ev.ResponseCreate(response_id="r", text=TEXT, end=True))
        async for message in client:
            if isinstance(message, ev.ResponseDone):
                assert getattr(message.error, "code", None) == "overloaded", message
                raise Overloaded
            if isinstance(message, ev.AudioMessage):
                began.set()
                return await hear(client, "r")
    raise AssertionError(f"closed with {client.close_code}")


def engines(mark: str) -> list[psutil.Process]:
    """The engines' programs, without the launchers above them."""
    return [one for one in marked(mark) if command_of(one)[1:5] == ["-P", "-m", "realtime.cli", "engine"]]


async def test_command_runs_engines_and_replaces_a_killed_one(ray_here, free_port, tmp_path):
    file = tmp_path / "cluster.yaml"
    door = f"door: {{haproxy: true, port: {free_port}}}\n"
    file.write_text("name: test-command\nengine: {min_replicas: 2, max_replicas: 2}\n" + door)
    url = f"ws://127.0.0.1:{free_port}"
    try:
        assert await asyncio.to_thread(run_command, "up", file) == f"door  http://127.0.0.1:{free_port}\n"
        began = [asyncio.Event(), asyncio.Event()]
        replies = [asyncio.create_task(say(url, event)) for event in began]
        for event in began:
            await event.wait()
        killed = engines(ray_here)[0]
        killed.kill()
        assert [(await reply).done.status for reply in replies] == ["completed"] * 2
        assert (await asyncio.to_thread(run_command, "up", file)).startswith("door")
        lines = (await asyncio.to_thread(run_command, "status", file)).splitlines()
        assert [line.split()[1] for line in lines] == ["ready"] * 4
        assert len(engines(ray_here)) == 2
        file.write_text(file.read_text() + "model: owner/other\n")
        refusal = await asyncio.to_thread(run_command, "up", file, 1)
        assert "model was None and cannot change while the cluster runs" in refusal
    finally:
        await asyncio.to_thread(run_command, "down", file)
    assert engines(ray_here) == []
    assert "no cluster 'test-command'" in await asyncio.to_thread(run_command, "status", file, 1)


async def test_engines_scale_with_load_and_cut_nothing(ray_here, free_port, tmp_path):
    """One engine of three places, a second one for five callers, and one again for one caller."""
    file = tmp_path / "cluster.yaml"
    settings = "settings: {engine.options.max_running_requests: 3}"
    file.write_text(
        "name: test-scale\nscale_down_delay_s: 2\n"
        f"engine: {{max_replicas: 2, {settings}}}\ndoor: {{haproxy: true, port: {free_port}}}\n"
    )
    statuses: list[str] = []

    async def call(until: asyncio.Event) -> None:
        while not until.is_set():
            try:
                spoken = await say(f"ws://127.0.0.1:{free_port}", asyncio.Event())
                statuses.append(spoken.done.status)
            except (InvalidStatus, Overloaded):  # 429 while every place is taken
                await asyncio.sleep(0.5)

    try:
        await asyncio.to_thread(run_command, "up", file)
        async with asyncio.TaskGroup() as group:
            few, many = asyncio.Event(), asyncio.Event()
            group.create_task(call(few))
            for _ in range(4):
                group.create_task(call(many))
            await until_engines_speak(file, 2)
            many.set()
            await until_engines_speak(file, 1)
            few.set()
        assert set(statuses) == {"completed"}
        assert len(engines(ray_here)) == 1
    finally:
        await asyncio.to_thread(run_command, "down", file)


async def until_engines_speak(file: Path, num_engines: int) -> None:
    """Wait until the status lists so many engines, all of them ready."""
    async with asyncio.timeout(240):
        while True:
            lines = [line.split() for line in (await asyncio.to_thread(run_command, "status", file)).splitlines()]
            states = [state for name, state, *_ in lines if name.startswith("engine")]
            if states == ["ready"] * num_engines:
                return
            await asyncio.sleep(1)
