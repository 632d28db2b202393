"""One process of clients: reads a ``LoadPlan`` from standard input, says it is ready, waits for a
line, prints outcomes.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec
from websockets.exceptions import InvalidHandshake, InvalidStatus

from realtime.bench.client import now_s, run_client
from realtime.bench.plan import LoadPlan, ResponseResult, endless, read_corpus

READY = "ready"


async def run(plan: LoadPlan) -> list[ResponseResult]:
    texts = read_corpus(Path(plan.corpus))
    sessions = range(plan.first_session, plan.first_session + plan.num_sessions)
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
    print(READY, flush=True)
    sys.stdin.readline()
    for outcome in asyncio.run(run(plan)):
        print(msgspec.json.encode(outcome).decode())


if __name__ == "__main__":
    main()
