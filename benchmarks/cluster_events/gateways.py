"""Gateways with the fake engine, processes of their own, behind the door of a cluster."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Awaitable, Callable

import httpx2 as httpx

from realtime.cluster.config import ClusterConfig, DoorSettings
from realtime.cluster.door import DoorReplica
from realtime.cluster.replica import Members, ReplicaSpec
from realtime.protocol import events as ev
from tests.cluster.conftest import GatewayProcess

SETTINGS = ev.NativeSpeechSettings(
    format=ev.NativeAudioFormat(encoding="pcm_s16le", sample_rate=16_000), lead_ms=2_000, checkpoints=True, seed=5
)
POLL_S = 0.1
# Of a gateway's engine: one has room for the replies of all.
NUM_SLOTS = 512
# A message: an engine has chunks of up to 8 frames in long speech.
CHUNK_FRAMES = 3
# Speech is not marked: the cost of that is another measurement's.
QUIET = {"watermark__enabled": "false"}


def open_door(port: int) -> DoorReplica:
    config = ClusterConfig(door=DoorSettings(port=port, haproxy=True))
    return DoorReplica(ReplicaSpec(name="door", kind="door", generation="1", config=config), "127.0.0.1")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


class Gateways:
    """``await apply()`` runs an event."""

    settings = SETTINGS

    def __init__(self, num_gateways: int, num_chars: int) -> None:
        self.text = "x" * num_chars
        port = free_port()
        self.url = f"ws://127.0.0.1:{port}"
        self.door = open_door(port)
        self._started: list[GatewayProcess] = []
        self.ready = [self._start() for _ in range(num_gateways)]
        while not self._report():
            time.sleep(POLL_S)

    def _start(self) -> GatewayProcess:
        self._started.append(GatewayProcess(str(len(self._started)), NUM_SLOTS, CHUNK_FRAMES, **QUIET))
        return self._started[-1]

    def _report(self, *leaving: GatewayProcess) -> bool:
        gateways = [one.status() for one in self.ready] + [one.status("draining") for one in leaving]
        return self.door.report(Members(gateways=tuple(gateways))).state == "ready"

    async def apply(self, event: str, speak_more: Callable[[], Awaitable[None]]) -> dict[str, object]:
        """Return what is measured beside the replies. ``speak_more`` begins as many replies as there are."""
        if event == "kill":
            self.ready.pop(0).process.kill()
        elif event == "upgrade":
            for old in list(self.ready):
                await self._add(1)
                await self._drain(old)
        elif event == "scale":
            return await self._scale(speak_more)
        return {}

    async def _scale(self, speak_more: Callable[[], Awaitable[None]]) -> dict[str, object]:
        """From one gateway to four and back."""
        first = self.ready[0]
        await self._add(3)
        ready_s = time.monotonic()
        await speak_more()
        while min([await num_active(one) for one in self.ready if one is not first]) == 0:  # noqa: ASYNC110 processes
            await asyncio.sleep(POLL_S)
        used_s = time.monotonic() - ready_s
        for gateway in [one for one in self.ready if one is not first]:
            await self._drain(gateway)
        return {"places_used_after_s": round(used_s, 2)}

    async def _add(self, num_gateways: int) -> None:
        self.ready += [await asyncio.to_thread(self._start) for _ in range(num_gateways)]
        await asyncio.to_thread(self._report)

    async def _drain(self, gateway: GatewayProcess) -> None:
        self.ready.remove(gateway)
        await asyncio.to_thread(self._report, gateway)
        gateway.process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        for gateway in self._started:
            gateway.process.kill()
            gateway.process.communicate()
        self.door.kill()


async def num_active(gateway: GatewayProcess) -> float:
    async with httpx.AsyncClient(trust_env=False) as client:
        lines = (await client.get(f"http://127.0.0.1:{gateway.port}/metrics")).text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("voicewire_active_responses "))
