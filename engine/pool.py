"""Several engines of one model as one ``SpeechEngine``: placement, and takeover when one of them dies or drains.

Each engine has a client of its own (``engine.client``), which connects again by itself. When a connection breaks, the
pool gives the client's requests to another engine, which goes on at the next sample. Without another engine they wait
for the first that comes back. An engine that drains gives its requests up in the same way, or keeps them if there is no
other.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
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
from engine.ipc import HelloMessage
from engine.streams import EngineStream

# Replies whose engine is remembered.
MAX_PLACEMENTS = 4096


class EnginePool:
    """``clients`` are of engines with the same checkpoint and options."""

    def __init__(self, clients: Sequence[EngineClient]) -> None:
        self.clients: list[EngineClient] = []
        # By reply; its segments stay on one engine.
        self._placements: OrderedDict[str, EngineClient] = OrderedDict()
        # Of the first engine: all others have to be like it.
        self._hello: HelloMessage | None = None
        self._prefetched_voices: Sequence[str] = ()
        for client in clients:
            self._add(client)

    def _add(self, client: EngineClient) -> None:
        client.check_hello = self._check_hello
        client.on_connection_change = partial(self._on_change, client)
        self.clients.append(client)

    def _check_hello(self, hello: HelloMessage) -> None:
        """Raise ``CheckpointError`` for an engine of another model or with other options."""
        if self._hello is None:
            self._hello = hello
        elif difference := find_difference(self._hello, hello):
            raise CheckpointError(f"the engines differ: {difference}")

    @property
    def info(self) -> EngineInfo:
        if self._hello is None:
            raise EngineDead("no engine has started")
        return self._hello.info

    @property
    def is_alive(self) -> bool:
        """Return whether an engine takes new replies."""
        return any(client.is_available for client in self.clients)

    @property
    def num_restarts(self) -> int:
        return sum(client.num_restarts for client in self.clients)

    async def start(self) -> None:
        """Start all engines side by side. Raises ``CheckpointError`` if one cannot, or is of another model."""
        try:
            async with asyncio.TaskGroup() as group:
                for client in self.clients:
                    group.create_task(client.start())
        except ExceptionGroup as failures:
            await self.aclose()
            raise failures.exceptions[0] from None
        except BaseException:
            await self.aclose()
            raise

    def submit(self, request: SpeechRequest, wake: Callable[[], None] | None = None) -> EngineStream:
        """Submit to the engine that spoke the reply so far, else to the one with the most free places.

        Raises ``EngineDead`` if no engine takes new replies. A later segment of a reply then goes to an engine that
        drains, or waits for one that comes back.
        """
        return self._place(request).submit(request, wake)

    def _place(self, request: SpeechRequest) -> EngineClient:
        reply = request.request_id.rpartition("/")[0]
        client = self._placements.pop(reply, None)
        if client is None or not client.is_available:
            client = self._emptiest() or self._last_resort(request, client)
        if reply:
            self._placements[reply] = client
            if len(self._placements) > MAX_PLACEMENTS:
                self._placements.popitem(last=False)
        return client

    def _emptiest(self) -> EngineClient | None:
        available = [client for client in self.clients if client.is_available]
        return max(available, key=lambda client: client.num_free_places, default=None)

    def _last_resort(self, request: SpeechRequest, previous: EngineClient | None) -> EngineClient:
        """Return the client for a later segment of a reply while no engine takes new replies."""
        if not request.continues_reply or not self.clients:
            raise EngineDead("no engine takes new replies")
        return previous if previous in self.clients else self.clients[0]

    def _on_change(self, client: EngineClient) -> None:
        if client.is_available:
            client.prefetch_voices(self._prefetched_voices)
        self._move_requests()

    def _move_requests(self) -> None:
        """Give the requests of engines that are gone, or about to end, to others."""
        for client in self.clients:
            while self.is_alive and not client.is_available and (stream := client.pop_stream()) is not None:
                self._place(stream.request).adopt(stream)

    async def encode_voice(self, sample: ReferenceAudio) -> ClonedVoice:
        client = self._emptiest()
        if client is None:
            raise EngineDead("no engine takes recordings")
        return await client.encode_voice(sample)

    def prefetch_voices(self, voices: Sequence[str]) -> None:
        self._prefetched_voices = voices
        for client in self.clients:
            if client.is_available:
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


def find_difference(one: HelloMessage, other: HelloMessage) -> str | None:
    """Describe the first property in which two engines differ; ``None`` if there is none."""
    for name in EngineInfo.__struct_fields__:
        if (value := getattr(other.info, name)) != (wanted := getattr(one.info, name)):
            return f"{name} is {value!r}, not {wanted!r}"
    for name, wanted in one.options.items():
        if (value := other.options.get(name)) != wanted:
            return f"option {name} is {value!r}, not {wanted!r}"
    return None if other.fingerprint == one.fingerprint else "the files of the checkpoints are not the same"
