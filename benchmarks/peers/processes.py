"""Client processes: each runs its part of every level, and all begin a level at one moment."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from benchmarks.peers.load import LevelPlan, Load, split
from benchmarks.peers.reply import now_s
from realtime.bench.plan import ResponseResult

# Time for processes to read their plans and to open their connections.
BEGIN_AFTER_S = 0.3
MAX_LINE_BYTES = 2**26


class ClientProcesses:
    """Processes that wait for plans. ``start_clients`` makes it."""

    def __init__(self, processes: list[Process]) -> None:
        self._processes = processes

    async def run(self, plan: LevelPlan) -> list[ResponseResult]:
        """Run a level, and return the results of all processes; raises ``ChildProcessError`` if one fails."""
        plan = msgspec.structs.replace(plan, begin_s=now_s() + BEGIN_AFTER_S)
        parts = zip(self._processes, split(plan, len(self._processes)), strict=False)
        each = await asyncio.gather(*(self._run_part(process, part) for process, part in parts))
        return [result for results in each for result in results]

    async def _run_part(self, process: Process, part: LevelPlan) -> list[ResponseResult]:
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(part) + b"\n")
        return msgspec.json.decode(await read_line(process), type=list[ResponseResult])


@asynccontextmanager
async def start_clients(num_processes: int) -> AsyncIterator[ClientProcesses]:
    processes: list[Process] = []
    try:
        for _ in range(num_processes):
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "benchmarks.peers.processes", stdin=PIPE, stdout=PIPE, limit=MAX_LINE_BYTES
            )
            processes.append(process)
        for process in processes:
            await read_line(process)
        yield ClientProcesses(processes)
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def read_line(process: Process) -> bytes:
    assert process.stdout is not None
    if not (line := await process.stdout.readline()):
        raise ChildProcessError("a process of clients ended")
    return line


def main() -> None:
    print("ready", flush=True)
    for line in sys.stdin:
        results = asyncio.run(Load(msgspec.json.decode(line, type=LevelPlan)).run())
        print(msgspec.json.encode(results).decode(), flush=True)


if __name__ == "__main__":
    main()
