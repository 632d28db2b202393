"""Closed and open loops over any wire, and their results."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import islice
from typing import Literal

import msgspec
from websockets.exceptions import WebSocketException

from benchmarks.peers.reply import Reply, now_s
from benchmarks.peers.wires import TIMEOUT_S, WIRES, Target, Wire
from realtime.bench.plan import ResponseResult, endless

Loop = Literal["closed", "open"]
FAILURES = (OSError, TimeoutError, WebSocketException)


class LevelPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Load of one level, or a process's part of it. Texts come in the same order for every wire."""

    wire: str
    target: Target
    texts: list[str]
    # 0 sends whole texts.
    tokens_per_second: float = 0.0
    seed: int = 0
    # A closed loop keeps ``level`` connections busy. An open one begins ``level`` replies in a second on average, at
    # random moments (Poisson), each on its own connection.
    loop: Loop
    level: float
    num_replies: int
    # Texts that came before, in the warm-up.
    first_text: int = 0
    process: int = 0
    num_processes: int = 1

    @property
    def num_connections(self) -> int:
        """Connections of all processes, each with a reply."""
        return min(self.num_replies, int(self.level)) if self.loop == "closed" else self.num_replies

    def texts_of_process(self) -> list[str]:
        """Every connection takes texts in turn, and a process those of its connections."""
        last_text = self.first_text + self.num_replies
        texts = enumerate(islice(endless(self.texts, self.seed), self.first_text, last_text))
        return [text for index, text in texts if index % self.num_connections % self.num_processes == self.process]


def split(plan: LevelPlan, num_processes: int) -> list[LevelPlan]:
    """The same load over several processes, none without a reply. Each gets connections in turn."""
    step = min(num_processes, plan.num_connections)
    return [msgspec.structs.replace(plan, process=process, num_processes=step) for process in range(step)]


async def begin_now() -> float:
    return now_s()


class Load:
    """Runs a plan once."""

    def __init__(self, plan: LevelPlan, begin: Callable[[], Awaitable[float]] = begin_now) -> None:
        """``begin`` is called when the connections of a closed loop are open; it returns when the replies begin."""
        self.plan, self._begin = plan, begin
        self._texts = iter(plan.texts_of_process())

    async def run(self) -> list[ResponseResult]:
        return await (self._run_closed() if self.plan.loop == "closed" else self._run_open())

    async def _run_closed(self) -> list[ResponseResult]:
        plan = self.plan
        sessions = range(plan.process, plan.num_connections, plan.num_processes)
        opened = await asyncio.gather(*(self._open() for _ in sessions))
        await sleep_until(await self._begin())
        each = await asyncio.gather(*map(self._speak_in_turn, sessions, opened))
        return [result for results in each for result in results]

    async def _speak_in_turn(self, session: int, opened: tuple[Wire, str | None] | None) -> list[ResponseResult]:
        results = []
        for text in self._texts:
            wire, error = opened or await self._open()
            results.append(await self._speak(wire, session, text, error))
            opened = None if results[-1].error else (wire, None)
            if not opened:
                await self._close(wire)
        if opened:
            await self._close(opened[0])
        return results

    async def _run_open(self) -> list[ResponseResult]:
        """All processes draw the moments of all replies."""
        plan, draw, tasks = self.plan, random.Random(self.plan.seed), []
        at_s = await self._begin()
        for session in range(plan.num_replies):
            if session % plan.num_processes == plan.process:
                await sleep_until(at_s)
                tasks.append(asyncio.create_task(self._speak_once(session, next(self._texts))))
            at_s += draw.expovariate(plan.level)
        return list(await asyncio.gather(*tasks))

    async def _speak_once(self, session: int, text: str) -> ResponseResult:
        wire, error = await self._open()
        result = await self._speak(wire, session, text, error)
        await self._close(wire)
        return result

    async def _open(self) -> tuple[Wire, str | None]:
        """Open a connection, or return the code of its error beside it."""
        wire = WIRES[self.plan.wire]()
        return wire, await error_of(wire.open(self.plan.target))

    async def _speak(self, wire: Wire, session: int, text: str, error: str | None) -> ResponseResult:
        """Speak a text, unless its connection already has an error."""
        reply = Reply(text, self.plan.tokens_per_second)
        return reply.result(session, error or await error_of(wire.speak(reply)))

    @staticmethod
    async def _close(wire: Wire) -> None:
        with suppress(*FAILURES):
            await wire.aclose()


async def error_of(step: Awaitable[None]) -> str | None:
    """Wait for a step, and return the code of its error."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await step
    except FAILURES as error:
        return str(error) or type(error).__name__
    return None


async def sleep_until(at_s: float) -> None:
    await asyncio.sleep(max(0.0, at_s - now_s()))
