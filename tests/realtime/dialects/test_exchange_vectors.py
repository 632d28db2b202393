"""Recorded exchanges, replayed against each dialect alone: every message and intent is as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from realtime.protocol.dialects.base import Dialect
from realtime.protocol.dialects.registry import DIALECT_ROUTES, DialectRoute
from realtime.protocol.model import DialectCommand, DialectEvent
from tests.realtime.dialects.exchange import read_exchanges, replay, wire_of

VECTORS = sorted((Path(__file__).parents[2] / "vectors" / "exchanges").rglob("*.jsonl"))
RECORDINGS = [path for path in VECTORS if not path.name.startswith("case-")]


@pytest.mark.parametrize("path", VECTORS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_exchange_replays_equal(path: Path) -> None:
    for exchange in read_exchanges(path):
        for number, (recorded, replayed) in enumerate(replay(exchange), 1):
            assert replayed == recorded, f"step {number} of {exchange[0]}"


def test_every_dialect_has_an_exchange_with_audio() -> None:
    with_audio = set()
    for path in RECORDINGS:
        [[head, *steps]] = read_exchanges(path)
        if any(step.get("event", [""])[0] == "ContextAudio" and step["intents"] for step in steps):
            with_audio.add(wire_of(head).dialect)
    assert with_audio == {wire.dialect for wire in DIALECT_ROUTES}


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
