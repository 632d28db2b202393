"""The same rules reply by reply, for a small cluster: what the counts of ``cluster.py`` are checked against.

Engines are fixed in number; some are killed at given moments. Connections hold.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from benchmarks.cluster_sim.costs import FRAMES_PER_S, PROMPT_POSITIONS, Costs


@dataclass(eq=False)
class Reply:
    begun_s: float
    engine: int


@dataclass
class ReplySimulation:
    """``rate`` replies come in a second, with exponential lengths; ``kills`` are (moment, engine)."""

    costs: Costs
    num_engines: int
    rate: float
    reply_s: float
    lead_s: float
    detection_s: float
    kills: Iterable[tuple[float, int]] = ()
    seed: int = 0
    arrived: int = 0
    completed: int = 0
    refused: int = 0
    taken_over: int = 0
    silent_takeover: int = 0
    live_seconds: float = 0.0
    _replies: set[Reply] = field(default_factory=set)

    def run(self, seconds: float) -> ReplySimulation:
        self._random = random.Random(self.seed)
        self._used = [0] * self.num_engines
        self._alive = [True] * self.num_engines
        # When an engine has computed the takeovers that it was given.
        self._idle_s = [0.0] * self.num_engines
        order = itertools.count()
        events: list[tuple[float, int, Reply | int | None]] = [(at_s, next(order), one) for at_s, one in self.kills]
        events.append((self._random.expovariate(self.rate), next(order), None))
        heapq.heapify(events)
        before_s = 0.0
        while events and events[0][0] < seconds:
            now_s, _, event = heapq.heappop(events)
            self.live_seconds += len(self._replies) * (now_s - before_s)
            before_s = now_s
            if event is None:
                heapq.heappush(events, (now_s + self._random.expovariate(self.rate), next(order), None))
                if (reply := self._arrive(now_s)) is not None:
                    ends_s = now_s + self._random.expovariate(1 / self.reply_s)
                    heapq.heappush(events, (ends_s, next(order), reply))
            elif isinstance(event, Reply):
                self._end(event)
            else:
                self._kill(event, now_s)
        return self

    @property
    def num_open(self) -> int:
        return len(self._replies)

    def _emptiest(self) -> int:
        alive = (engine for engine in range(self.num_engines) if self._alive[engine])
        return min(alive, key=self._used.__getitem__)

    def _arrive(self, now_s: float) -> Reply | None:
        self.arrived += 1
        engine = self._emptiest()
        if self._used[engine] >= self.costs.places:
            self.refused += 1
            return None
        reply = Reply(now_s, engine)
        self._used[engine] += 1
        self._replies.add(reply)
        return reply

    def _end(self, reply: Reply) -> None:
        self.completed += 1
        self._used[reply.engine] -= 1
        self._replies.remove(reply)

    def _kill(self, dead: int, now_s: float) -> None:
        """Give the replies of an engine to others, which compute them one after the other."""
        self._alive[dead] = False
        self._used[dead] = 0
        speedup = self.costs.sustained * sum(self._alive) / max(1, sum(self._used))
        for reply in [reply for reply in self._replies if reply.engine == dead]:
            reply.engine = engine = self._emptiest()
            self._used[engine] += 1
            self.taken_over += 1
            age_s = now_s - reply.begun_s
            positions = PROMPT_POSITIONS + FRAMES_PER_S * age_s
            begins_s = max(self._idle_s[engine], now_s + self.detection_s)
            self._idle_s[engine] = begins_s + positions / self.costs.positions_per_s(self._used[engine])
            lead_s = min(self.lead_s, (speedup - 1) * age_s)
            self.silent_takeover += self._idle_s[engine] - now_s > lead_s
