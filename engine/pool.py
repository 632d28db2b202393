"""Several engines of one model as one ``SpeechEngine``: placement, and takeover when one of them dies.

Each engine has a client of its own (``engine.client``), which connects again by itself. When a connection breaks, the
pool gives the client's requests to another engine, which goes on at the next sample. Without another engine they wait
for the first that comes back.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from engine.api import (
    CheckpointError,
    ClonedVoice,
    EngineDead,
    EngineInfo,
    EngineStats,
    ReferenceAudio,
    SpeechRequest,
)
from engine.client import EngineClient
from engine.streams import EngineStream

# Replies whose engine is remembered.
MAX_PLACEMENTS = 4096


class EnginePool:
    """``clients`` are of engines with the same checkpoint and options."""

    def __init__(self, clients: Sequence[EngineClient]) -> None:
        self.clients = tuple(clients)
        # By reply; its segments stay on one engine.
        self._placements: OrderedDict[str, EngineClient] = OrderedDict()
        for client in self.clients:
            client.on_connection_change = self._move_requests

    @property
    def info(self) -> EngineInfo:
        return self.clients[0].info

    @property
    def is_alive(self) -> bool:
        return any(client.is_alive for client in self.clients)

    @property
    def num_restarts(self) -> int:
        return sum(client.num_restarts for client in self.clients)

    async def start(self) -> None:
        """Start all engines side by side. Raises ``CheckpointError`` if one cannot, or is of another model."""
        try:
            async with asyncio.TaskGroup() as group:
                for client in self.clients:
                    group.create_task(client.start())
            for client in self.clients[1:]:
                if client.info != self.info:
                    raise CheckpointError(f"the engines differ: {self.info.model} and {client.info.model}")
        except ExceptionGroup as failures:
            await self.aclose()
            raise failures.exceptions[0] from None
        except BaseException:
            await self.aclose()
            raise

    def submit(self, request: SpeechRequest, wake: Callable[[], None] | None = None) -> EngineStream:
        """Submit to the engine that spoke the reply so far, else to the one with the most free places.

        Raises ``EngineDead`` if no engine runs, except for a later segment of a reply: it waits for one.
        """
        return self._place(request).submit(request, wake)

    def _place(self, request: SpeechRequest) -> EngineClient:
        reply = request.request_id.rpartition("/")[0]
        client = self._placements.pop(reply, None)
        if client is None or not client.is_alive:
            client = self._emptiest()
        if reply:
            self._placements[reply] = client
            if len(self._placements) > MAX_PLACEMENTS:
                self._placements.popitem(last=False)
        return client

    def _emptiest(self) -> EngineClient:
        """Return the first engine if none runs."""
        alive = [client for client in self.clients if client.is_alive]
        return max(alive, key=lambda client: client.num_free_places, default=self.clients[0])

    def _move_requests(self) -> None:
        """Give the requests of engines that are gone to one that is there."""
        for client in self.clients:
            while self.is_alive and not client.is_alive and (stream := client.pop_stream()) is not None:
                self._place(stream.request).adopt(stream)

    async def encode_voice(self, sample: ReferenceAudio) -> ClonedVoice:
        return await self._emptiest().encode_voice(sample)

    def prefetch_voices(self, voices: Sequence[str]) -> None:
        for client in self.clients:
            if client.is_alive:
                client.prefetch_voices(voices)

    def stats(self) -> EngineStats:
        """Return the sums over the engines that have reported; ``step_ms`` is that of the slowest."""
        reports = []
        for client in self.clients:
            with suppress(EngineDead):
                reports.append(client.stats())
        if not reports:
            raise EngineDead("no engine is running")
        names = EngineStats.__struct_fields__
        total: dict[str, Any] = {name: sum(getattr(stats, name) for stats in reports) for name in names}
        return EngineStats(**total | {"step_ms": max(stats.step_ms for stats in reports)})

    async def aclose(self) -> None:
        await asyncio.gather(*(client.aclose() for client in self.clients))
