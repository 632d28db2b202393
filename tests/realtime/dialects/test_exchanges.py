"""Exchanges recorded from the clients themselves (tests/sdk), played again: each message goes out when the client had
heard as much as it had then, and the server ends everything that it ended then, in the same order.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.fakes.engine import FakeScript, FakeSpeechEngine
from tests.realtime.live_server import WAIT_S, live_server, until

EXCHANGES = json.loads((Path(__file__).parents[2] / "vectors" / "wires.json").read_text())
TOLD = "done Flushed Cleared SpeechMetadata SpeechInterrupted Metadata Connected SpeechStarted SessionMetadata".split()


class Ear:
    """What a client has heard so far."""

    def __init__(self) -> None:
        # In bytes where it comes in binary, else in messages.
        self.audio = 0
        self.ends: list[str] = []

    def hear(self, message: str | bytes) -> None:
        kind = None if isinstance(message, bytes) else kind_of(json.loads(message))
        if kind is None:
            self.audio += len(message) if isinstance(message, bytes) else 1
        else:
            self.ends.append(kind)

    def has(self, wanted: dict[str, Any]) -> bool:
        return len(self.ends) >= wanted["ends"] and self.audio >= wanted["audio"]


def kind_of(message: dict[str, Any]) -> str | None:
    """What a message ends or begins; ``None`` for audio and times."""
    if message.get("type") in (*TOLD, "Warning", "Error", "error"):
        return str(message["type"])
    return next((name for name in ("isFinal", "is_final", "error") if message.get(name)), None)


@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda exchange: exchange["client"])
async def test_a_recorded_exchange(exchange: dict[str, Any]) -> None:
    engine = FakeSpeechEngine(FakeScript(ms_per_char=60.0, first_chunk_s=0.005, real_time_factor=0.05))
    async with live_server(engine) as live:
        async with connect(live.url + exchange["address"], compression=None, proxy=None) as socket:
            ear = Ear()
            listening = asyncio.create_task(listen(socket, ear))
            for said in exchange["said"]:
                await until(lambda: ear.has(said["after"]))  # noqa: B023
                await socket.send(json.dumps(said["message"]))
            await until(lambda: ear.has({"ends": len(exchange["told"]), "audio": 1}))
            assert ear.ends == exchange["told"]
        await listening
        await live.freed()


async def listen(socket: Any, ear: Ear) -> None:
    async with asyncio.timeout(WAIT_S):
        try:
            async for message in socket:
                ear.hear(message)
        except ConnectionClosed:
            pass
