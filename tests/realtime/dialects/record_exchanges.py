"""Record exchanges of clients with the server, and choose which to keep as vectors.

    pytest -p tests.realtime.dialects.record_exchanges --exchanges FOLDER tests/realtime/dialects
    VOICEWIRE_TEST_EXCHANGES=FOLDER pytest -m sdk tests/sdk
    python -m tests.realtime.dialects.record_exchanges FOLDER

The first two record every exchange of a run; of tests/sdk, the server's process records. The last keeps, for each wire,
few exchanges that together have every kind of message, event and intent that was seen; those of other people's clients
come first. Written exchanges (``case-*``) stay.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from realtime.protocol.dialects.registry import DIALECT_ROUTES
from tests.realtime.dialects.exchange import Exchange, RecordingDialect, read_exchanges

KEPT = Path(__file__).parents[2] / "vectors" / "exchanges"
MAX_PER_WIRE = 5
FOLDER_VARIABLE = "VOICEWIRE_TEST_EXCHANGES"  # where a server in a process of its own records exchanges
FUZZED = "says-anything"  # random messages show nothing that a client does


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--exchanges", type=Path, help="record exchanges into this folder")


@pytest.fixture(autouse=True)
def exchanges_recorded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    folder: Path | None = request.config.getoption("--exchanges")
    if folder is None:
        return
    record_into(folder, monkeypatch, f"own-{request.node.name}")


def record_into(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str | None = None) -> None:
    """Record every exchange of this process; without a name, by the client's user agent."""
    from realtime.dialect_connection import DialectConnection

    create = DialectConnection.__init__
    folder.mkdir(parents=True, exist_ok=True)

    def create_recording(self: Any, server: Any, wire: Any, dialect: Any) -> None:
        client = name or f"sdk-{dialect.handshake.headers.get('user-agent', 'unnamed')}"
        file_name = re.sub(r"[^a-z0-9]+", "-", client.lower()).strip("-")[:80]
        path = folder / f"{file_name}-{os.getpid()}-{len(list(folder.iterdir())):05}.jsonl"
        create(self, server, wire, RecordingDialect(dialect, wire, path) if wire in DIALECT_ROUTES else dialect)

    monkeypatch.setattr(DialectConnection, "__init__", create_recording)


def kinds_of(exchange: Exchange) -> set[str]:
    """What an exchange shows: the names of events and intents, and the shapes of JSON messages either way."""
    kinds = set()
    for step in exchange[1:]:
        match step:
            case {"receive": message}:
                kinds.add("receive " + shape_of(message))
            case {"event": [name, _]}:
                kinds.add(f"event {name}")
            case {"fail": error}:
                kinds.add(f"fail {error['code']}")
        for intent in step.get("intents", []):
            kinds.add("send " + shape_of(intent[1]) if intent[0] == "Send" else f"intent {intent[0]}")
        if "raises" in step:
            kinds.add(f"raises {step['raises'][0]}")
    return kinds


def shape_of(message: Any) -> str:
    """Keys and type of a JSON message; else what it is."""
    try:
        content = json.loads(message)
    except (TypeError, ValueError):
        return "binary" if isinstance(message, dict) else "text"
    if not isinstance(content, dict):
        return type(content).__name__
    return f"{content.get('type', content.get('event', ''))} {sorted(content)}"


def choose(recordings: list[Path]) -> list[Path]:
    """The fewest exchanges, at most ``MAX_PER_WIRE``, that show the most kinds; SDKs' first."""
    shown: set[str] = set()
    chosen: list[Path] = []
    exchanges = {path: kinds_of(read_exchanges(path)[0]) for path in recordings}
    while len(chosen) < MAX_PER_WIRE:
        best = max(recordings, key=lambda path: (len(exchanges[path] - shown), path.name.startswith("sdk")))
        if not exchanges[best] - shown:
            break
        shown |= exchanges[best]
        chosen.append(best)
    return chosen


def main() -> None:
    recordings: dict[str, list[Path]] = {}
    for path in sorted(Path(sys.argv[1]).glob("*.jsonl")):
        if FUZZED in path.name:
            continue
        [[head, *_]] = read_exchanges(path)
        wire = re.sub(r"[^a-z0-9]+", "-", f"{head['wire']} {head['carrier']}".lower()).strip("-")
        recordings.setdefault(wire, []).append(path)
    for wire, paths in recordings.items():
        (KEPT / wire).mkdir(parents=True, exist_ok=True)
        for path in (KEPT / wire).glob("*.jsonl"):
            if not path.name.startswith("case-"):
                path.unlink()
        for path in choose(paths):
            shutil.copy(path, KEPT / wire / path.name)
        print(f"{wire}: {len(list((KEPT / wire).iterdir()))} of {len(paths)}")


if __name__ == "__main__":
    main()
