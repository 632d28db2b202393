"""The programs in ``examples/`` run as they stand there."""

from __future__ import annotations

import asyncio
import re
import sys
import wave
from asyncio.subprocess import PIPE
from pathlib import Path

import msgspec

from realtime.protocol.mqtt import messages
from tests.realtime.live_server import live_server
from tests.realtime.mqtt.mosquitto import running
from tests.realtime.mqtt.mqtt_client import bridged

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reference" / "mqtt-topics.md").read_text()


async def run(name: str, *arguments: str) -> None:
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "ignore", str(ROOT / "examples" / name), *arguments, stderr=PIPE, stdout=PIPE
    )
    _, told = await program.communicate()
    assert program.returncode == 0, told.decode()


def seconds_in(path: Path) -> float:
    with wave.open(str(path)) as file:
        return file.getnframes() / file.getframerate()


async def test_an_agent_at_a_broker(tmp_path: Path) -> None:
    with running(tmp_path) as broker:
        async with bridged(broker):
            await run("mqtt_agent.py", f"127.0.0.1:{broker.port}", str(tmp_path / "x.wav"))
    assert 1 < seconds_in(tmp_path / "x.wav") < 6


async def test_a_text_by_wyoming(tmp_path: Path) -> None:
    async with live_server(wyoming__enabled=True, wyoming__port=0) as live:
        port = live.uvicorn.config.app.state.wyoming.port
        await run("wyoming_say.py", "127.0.0.1", str(port), "Hello there, how are you?", str(tmp_path / "x.wav"))
    assert 0.5 < seconds_in(tmp_path / "x.wav") < 3


def test_mqtt_page_lists_every_message_and_field() -> None:
    for kind in msgspec.inspect.type_info(messages.ClientMessage).types:  # type: ignore[attr-defined]
        assert f'{{"t":"{kind.tag}"' in PAGE
    for kind in msgspec.inspect.type_info(messages.ServerMessage).types:  # type: ignore[attr-defined]
        row = re.search(rf"^\| `{kind.tag}` \| (.*?) \|", PAGE, re.MULTILINE)
        assert row is not None, kind.tag
        assert [f"`{field.name}`" for field in kind.fields] == row[1].split()
    for field in (*msgspec.structs.fields(messages.MqttOpen), *msgspec.structs.fields(messages.MqttSay)):
        assert f"`{field.name}`" in PAGE
