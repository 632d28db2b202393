"""Replay recorded exchanges against each dialect alone, and those of vendors' SDKs against a server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from realtime.protocol.dialects.base import Dialect, DialectRoute
from realtime.protocol.dialects.registry import DIALECT_ROUTES
from realtime.protocol.model import DialectCommand, DialectEvent
from tests.fakes.engine import FakeScript, FakeSpeechEngine
from tests.realtime.dialects.exchange import read_exchanges, replay, wire_of
from tests.realtime.live_server import WAIT_S, live_server, until
from tests.vectors import VECTORS

EXCHANGES = sorted((VECTORS / "exchanges").rglob("*.jsonl"))
RECORDINGS = [path for path in EXCHANGES if not path.name.startswith("case-")]


@pytest.mark.parametrize("path", EXCHANGES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_exchange_replays_equal(path: Path) -> None:
    for exchange in read_exchanges(path):
        for number, (recorded, replayed) in enumerate(replay(exchange)):
            assert replayed == recorded, f"step {number} of {exchange[0]}"


def test_every_dialect_has_an_exchange_with_audio() -> None:
    with_audio = set()
    for path in RECORDINGS:
        [[head, *steps]] = read_exchanges(path)
        if any(step.get("event", [""])[0] == "ContextAudio" and step["intents"] for step in steps):
            with_audio.add(wire_of(head).dialect)
    without = {wire.dialect.__name__ for wire in DIALECT_ROUTES if wire.dialect not in with_audio}
    assert not without, "record one for each: tests/realtime/dialects/record_exchanges.py says how"


@pytest.mark.parametrize("wire", DIALECT_ROUTES, ids=lambda wire: f"{wire.path} {wire.transport}")
def test_changed_dialect_does_not_replay_equal(wire: DialectRoute, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dialect that leaves out the first message of every event is caught by its vectors."""
    event_handler = wire.dialect.send_event

    def leave_out(self: Dialect, event: DialectEvent) -> list[DialectCommand]:
        return list(event_handler(self, event))[1:]

    monkeypatch.setattr(wire.dialect, "send_event", leave_out)
    exchanges = [exchange for path in RECORDINGS for exchange in read_exchanges(path)]
    exchanges = [exchange for exchange in exchanges if wire_of(exchange[0]).dialect is wire.dialect]
    assert any(replayed != recorded for exchange in exchanges for recorded, replayed in replay(exchange))


RECORDED = json.loads((VECTORS / "wires.json").read_text())
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


@pytest.mark.parametrize("exchange", RECORDED, ids=lambda exchange: exchange["client"])
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


async def listen(socket: Any, ear: Ear) -> None:
    async with asyncio.timeout(WAIT_S):
        try:
            async for message in socket:
                ear.hear(message)
        except ConnectionClosed:
            pass
