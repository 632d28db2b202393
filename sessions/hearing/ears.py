"""All callers' ears together: what each of them has heard is looked at in one run of the network, at the next tick."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sessions.clock import now_s, tick_at
from sessions.hearing.caller import NUM_TRACKS, CallerEar, Look, looked_at
from sessions.hearing.levels import SILENCE_DB

MAX_LOOKS = 64
"""In one turn of the event loop: it takes 1.3 ms at 8 kHz."""

Began = Callable[[], None]
"""Called when a caller begins to speak."""


class Ears:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[CallerEar, Began] = {}
        """Those with something to look at; who has waited longest is first."""
        self._timer: asyncio.Handle | None = None

    def hear(self, ear: CallerEar, data: bytes, began: Began, own_db: float = SILENCE_DB) -> None:
        ear.hear(data, own_db)
        if ear.waiting:
            self._waiting.setdefault(ear, began)
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_at(tick_at(now_s()), self._look)

    def forget(self, ear: CallerEar) -> None:
        """Nobody listens by it any more."""
        ear.rest()
        self._waiting.pop(ear, None)

    def _look(self) -> None:
        self._timer = None
        turns = self._take()
        try:
            for rate in {ear.rate for ear, _, _ in turns}:
                self._judge([turn for turn in turns if turn[0].rate == rate], rate)
        finally:
            if self._waiting and self._timer is None:
                self._timer = asyncio.get_running_loop().call_soon(self._look)

    def _take(self) -> list[tuple[CallerEar, Began, Look]]:
        """At most one look for each track; an ear whose turn it was goes behind the others."""
        turns: list[tuple[CallerEar, Began, Look]] = []
        for ear, began in list(self._waiting.items()):
            if len(turns) > MAX_LOOKS - NUM_TRACKS:
                break
            del self._waiting[ear]
            turns += [(ear, began, ear.waiting.popleft()) for _ in range(min(NUM_TRACKS, len(ear.waiting)))]
            if ear.waiting:
                self._waiting[ear] = began
        return turns

    def _judge(self, turns: list[tuple[CallerEar, Began, Look]], rate: int) -> None:
        found = looked_at([look for _, _, look in turns], rate)
        for (ear, began, look), (likely, level_db) in zip(turns, found, strict=True):
            if ear.judge(look, likely, level_db):
                began()
