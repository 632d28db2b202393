"""Closed and open loops over any wire, and their results."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from websockets.exceptions import WebSocketException

from benchmarks.peers.reply import Reply, now_s
from benchmarks.peers.wires import TIMEOUT_S, Target, Wire
from realtime.bench.plan import ResponseResult, endless

FAILURES = (OSError, TimeoutError, WebSocketException)


class Load:
    """Texts come in the same order for every wire; ``tokens_per_second`` is 0 for whole texts."""

    def __init__(
        self,
        make_wire: Callable[[], Wire],
        target: Target,
        texts: Sequence[str],
        tokens_per_second: float,
        seed: int = 0,
    ) -> None:
        self.make_wire, self.target, self.tokens_per_second = make_wire, target, tokens_per_second
        self._texts: Iterator[str] = endless(texts, seed)
        self._random = random.Random(seed)

    async def run_closed(self, num_workers: int, num_replies: int) -> list[ResponseResult]:
        """Keep ``num_workers`` connections busy until ``num_replies`` replies were begun."""
        left = iter(range(num_replies))

        async def work(session: int) -> list[ResponseResult]:
            wire, is_open, results = self.make_wire(), False, []
            for _ in left:
                results.append(await self._speak(wire, session, is_open=is_open))
                is_open = results[-1].error is None
                if not is_open:
                    await self._close(wire)
                    wire = self.make_wire()
            if is_open:
                await self._close(wire)
            return results

        return [result for each in await asyncio.gather(*map(work, range(num_workers))) for result in each]

    async def run_open(self, rate: float, num_replies: int) -> list[ResponseResult]:
        """Begin replies at random moments, ``rate`` in a second on average (Poisson), each on its own connection."""
        tasks = []
        at_s = now_s()
        for session in range(num_replies):
            await asyncio.sleep(max(0.0, at_s - now_s()))
            tasks.append(asyncio.create_task(self._speak_once(session)))
            at_s += self._random.expovariate(rate)
        return list(await asyncio.gather(*tasks))

    async def _speak_once(self, session: int) -> ResponseResult:
        wire = self.make_wire()
        result = await self._speak(wire, session, is_open=False)
        await self._close(wire)
        return result

    async def _speak(self, wire: Wire, session: int, *, is_open: bool) -> ResponseResult:
        reply = Reply(next(self._texts), self.tokens_per_second)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                if not is_open:
                    await wire.open(self.target)
                await wire.speak(reply)
        except FAILURES as error:
            return reply.result(session, str(error) or type(error).__name__)
        return reply.result(session)

    @staticmethod
    async def _close(wire: Wire) -> None:
        with suppress(*FAILURES):
            await wire.aclose()
