"""Client processes: each runs its part of every level, which begins when the connections of all are open."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from benchmarks.peers.load import LevelPlan, Load, split
from benchmarks.peers.reply import now_s
from realtime.bench.plan import ResponseResult

# Time for processes to read when they begin.
BEGIN_AFTER_S = 0.05
MAX_LINE_BYTES = 2**26


class ClientProcesses:
    """Processes that wait for plans. ``start_clients`` makes it."""

    def __init__(self, processes: list[Process]) -> None:
        self._processes = processes

    async def run(self, plan: LevelPlan) -> list[ResponseResult]:
        """Run a level, and return the results of all processes; raises ``ChildProcessError`` if one fails."""
        parts = split(plan, len(self._processes))
        processes = self._processes[: len(parts)]
        for process, part in zip(processes, parts, strict=True):
            write_line(process, part)
        # Each says that its connections are open.
        await asyncio.gather(*map(read_line, processes))
        begin_s = now_s() + BEGIN_AFTER_S
        for process in processes:
            write_line(process, begin_s)
        lines = await asyncio.gather(*map(read_line, processes))
        return [result for line in lines for result in msgspec.json.decode(line, type=list[ResponseResult])]


@asynccontextmanager
async def start_clients(num_processes: int) -> AsyncIterator[ClientProcesses]:
    processes: list[Process] = []
    try:
        for _ in range(num_processes):
            # Ctrl-C is for this process alone.
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "benchmarks.peers.processes", stdin=PIPE, stdout=PIPE, limit=MAX_LINE_BYTES,
                start_new_session=True,
            )  # fmt: skip
            processes.append(process)
        for process in processes:
            await read_line(process)
        yield ClientProcesses(processes)
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.wait()


def write_line(process: Process, message: LevelPlan | float) -> None:
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(message) + b"\n")


async def read_line(process: Process) -> bytes:
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line.endswith(b"\n"):
        raise ChildProcessError("a process of clients ended")
    return line


class ParentLines(asyncio.StreamReader):
    """Receives the lines of the parent, and ends this process when the parent has ended, even within a level."""

    def feed_eof(self) -> None:
        os._exit(1)


async def serve() -> None:
    lines = ParentLines(limit=MAX_LINE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)

    async def begin() -> float:
        print("open", flush=True)
        return float(await lines.readline())

    print("ready", flush=True)
    while True:
        plan = msgspec.json.decode(await lines.readline(), type=LevelPlan)
        results = await Load(plan, begin).run()
        print(msgspec.json.encode(results).decode(), flush=True)


if __name__ == "__main__":
    asyncio.run(serve())
