"""Measure the memory of a server before, while and after clients fill conversations of `/v1/realtime`.

    python -m benchmarks.connection_memory [--connections 20] [--rounds 3] [--items 8] [--chars 50000]

The server is a process of its own with the fake engine. A round opens ``--connections`` sockets, each of which creates
``--items`` items of ``--chars`` characters and then ``--items`` of 256 empty parts, and closes them all. Reported are
the resident bytes before the round, before the close and ``SETTLED_S`` after it. The last line is JSON; ``growth_mb``
is the memory after the last round less the memory before the first.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from realtime.memory import resident_bytes
from tests.realtime.server_process import ServerProcess, server

# The bound that memory is to be back within.
SETTLED_S = 5.0
MAX_PARTS = 256
MB = 1e6


@dataclass(frozen=True)
class Load:
    """Size of one round."""

    num_connections: int = 20
    num_items: int = 8
    num_chars: int = 50_000


@dataclass(frozen=True)
class Round:
    """Resident megabytes before, with all connections full, and after their close."""

    before_mb: float
    full_mb: float
    after_mb: float


def items(load: Load) -> Iterator[dict[str, Any]]:
    """One large text each, then many empty parts each."""
    texts = (
        [{"type": "input_text", "text": f"{index} ".ljust(load.num_chars, "x")}] for index in range(load.num_items)
    )
    parts = ([{"type": "input_text", "text": ""}] * MAX_PARTS for _ in range(load.num_items))
    for content in chain(texts, parts):
        yield {"type": "message", "role": "user", "content": content}


async def fill(line: ClientConnection, load: Load) -> None:
    """Create all items, and wait until each is in the conversation."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(until_added(line, 2 * load.num_items))
        for item in items(load):
            await line.send(json.dumps({"type": "conversation.item.create", "item": item}))


async def until_added(line: ClientConnection, num_items: int) -> None:
    while num_items:
        event = json.loads(await line.recv())
        if event["type"] == "error":
            raise SystemExit(f"an item was refused: {event['error']['message']}")
        num_items -= event["type"] == "conversation.item.done"


def resident_mb(running: ServerProcess) -> float:
    return round(resident_bytes(running.process.pid) / MB, 1)


async def one_round(running: ServerProcess, load: Load) -> Round:
    before_mb = resident_mb(running)
    async with AsyncExitStack() as lines:
        opened = [
            await lines.enter_async_context(connect(f"{running.url}/v1/realtime", compression=None, proxy=None))
            for _ in range(load.num_connections)
        ]
        async with asyncio.TaskGroup() as tasks:
            for line in opened:
                tasks.create_task(fill(line, load))
        full_mb = resident_mb(running)
    await asyncio.sleep(SETTLED_S)
    return Round(before_mb, full_mb, resident_mb(running))


async def measure(load: Load, num_rounds: int) -> dict[str, Any]:
    with server(log__level="error") as running:
        rounds = []
        for number in range(num_rounds):
            rounds.append(await one_round(running, load))
            print(f"round {number + 1}: {rounds[-1]}")
    growth_mb = round(rounds[-1].after_mb - rounds[0].before_mb, 1)
    return asdict(load) | {"rounds": [asdict(each) for each in rounds], "growth_mb": growth_mb}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=Load.num_connections)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--items", type=int, default=Load.num_items)
    parser.add_argument("--chars", type=int, default=Load.num_chars)
    args = parser.parse_args()
    load = Load(args.connections, args.items, args.chars)
    print(json.dumps(asyncio.run(measure(load, args.rounds))))


if __name__ == "__main__":
    main()
