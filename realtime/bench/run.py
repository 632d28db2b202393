"""The client processes of a load run, and their results together."""

from __future__ import annotations

import asyncio
import re
import sys
import urllib.request
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from websockets.exceptions import InvalidHandshake, InvalidStatus

from engine.api import reserve_descriptors
from realtime.bench.client import now_s, run_client
from realtime.bench.plan import LoadPlan, ResponseResult, endless, read_corpus

READY = "ready"


async def run(plan: LoadPlan) -> list[ResponseResult]:
    texts = read_corpus(Path(plan.corpus))
    sessions = range(plan.first_session, plan.first_session + plan.num_sessions * plan.session_step, plan.session_step)
    each = await asyncio.gather(*(_arrive(plan, session, texts) for session in sessions))
    return [outcome for outcomes in each for outcome in outcomes]


async def _arrive(plan: LoadPlan, session: int, texts: list[str]) -> list[ResponseResult]:
    await asyncio.sleep(plan.spread_s * session / plan.total_sessions)
    begun_s = now_s()
    try:
        return await run_client(plan, session, endless(texts, plan.seed + session))
    except (OSError, InvalidHandshake) as error:
        return [ResponseResult(session=session, status="failed", error=_code(error), begun_s=begun_s, ended_s=now_s())]


def _code(error: Exception) -> str:
    if isinstance(error, InvalidStatus):
        return f"http_{error.response.status_code}"
    return str(error) or type(error).__name__


def main() -> None:
    plan = msgspec.json.decode(sys.stdin.readline(), type=LoadPlan)
    reserve_descriptors(plan.num_sessions)
    print(READY, flush=True)
    sys.stdin.readline()
    for outcome in asyncio.run(run(plan)):
        print(msgspec.json.encode(outcome).decode())


if __name__ == "__main__":
    main()


RESIDENT = re.compile(r"^voicewire_resident_memory_bytes (\S+)$", re.MULTILINE)


def split(plan: LoadPlan, num_processes: int) -> list[LoadPlan]:
    """The same load over several processes, none without a session. Sessions arrive at each of them in turn."""
    step = min(num_processes, plan.num_sessions)
    counts = [len(range(first, plan.num_sessions, step)) for first in range(step)]
    return [
        msgspec.structs.replace(plan, first_session=first, session_step=step, num_sessions=count)
        for first, count in enumerate(counts)
    ]


async def measure(plans: Sequence[LoadPlan]) -> list[ResponseResult]:
    """Run client processes and collect their results; raises ``ChildProcessError`` if one fails."""
    processes = [await _start() for _ in plans]
    try:
        await asyncio.gather(*(_prepare(process, plan) for process, plan in zip(processes, plans, strict=True)))
        outputs = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
                await process.wait()
    if any(process.returncode for process in processes):
        raise ChildProcessError("a process of clients failed")
    return [msgspec.json.decode(line, type=ResponseResult) for output, _ in outputs for line in output.splitlines()]


def server_rss_mb(url: str, api_key: str | None) -> float | None:
    """Resident memory of the server's processes from its /metrics, if it can be read."""
    parts = urlsplit(url)
    scheme = "https" if parts.scheme in ("wss", "https") else "http"
    request = urllib.request.Request(f"{scheme}://{parts.netloc}/metrics")
    if api_key is not None:
        request.add_header("Authorization", f"Bearer {api_key}")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=5) as answer:
            found = RESIDENT.search(answer.read().decode())
    except OSError:
        return None
    return float(found.group(1)) / 1e6 if found else None


async def _start() -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "realtime.bench.run", stdin=PIPE, stdout=PIPE, limit=2**24
    )


async def _prepare(process: Process, plan: LoadPlan) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(msgspec.json.encode(plan) + b"\n")
    await process.stdin.drain()
    line = await process.stdout.readline()
    if line.decode().strip() != READY:
        raise ChildProcessError("a process of clients did not start")
