"""Kill, replace and add gateways under paced replies behind HAProxy, and measure what listeners miss.

    python -m benchmarks.cluster_events [--listeners 100] [--events none,kill,upgrade,scale]

Two gateways with the fake engine, processes of their own, behind the door of a cluster; replies are PCM at 16 kHz with
a lead of 2 s, all begun before the event. ``kill`` sends SIGKILL to one gateway, ``upgrade`` replaces both in turn,
``scale`` adds a third one and drains it. Reported for each event are replies by what became of them, those of a killed
gateway apart, and of the others the samples that are missing or too many, gaps by the client's clock, and packets that
came after they were due. ``none`` is the same load without an event. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import socket
import time
from collections import Counter
from dataclasses import dataclass

from websockets.exceptions import WebSocketException

from realtime.client import open_session
from realtime.cluster.config import ClusterConfig, DoorSettings
from realtime.cluster.door import DoorReplica
from realtime.cluster.replica import Members, ReplicaSpec
from realtime.protocol import events as ev
from tests.cluster.callers import MS_PER_CHAR
from tests.cluster.conftest import GatewayProcess

RATE = 16_000
LEAD_MS = 2_000
TEXT = "x" * 250
SETTINGS = ev.NativeSpeechSettings(format=ev.NativeAudioFormat(encoding="pcm_s16le", sample_rate=RATE), lead_ms=LEAD_MS)
# Seconds after the first audio of all.
EVENT_S = 4.0


@dataclass
class Listener:
    url: str
    began_s: float = 0.0
    num_samples: int = 0
    num_late: int = 0
    gap_s: float = 0.0
    status: str = "cut"

    async def run(self) -> None:
        try:
            async with await open_session(self.url) as client:
                await client.send(ev.ResponseCreate(response_id="r", settings=SETTINGS, text=TEXT, end=True))
                async for message in client:
                    if isinstance(message, ev.AudioMessage):
                        self._on_audio(sum(map(len, message.packets)) // 2)
                    elif isinstance(message, ev.ResponseDone):
                        self.status = message.status
                        return
        except (OSError, EOFError, WebSocketException) as error:
            self.status = "cut" if self.num_samples else f"refused: {type(error).__name__}"

    def _on_audio(self, num_samples: int) -> None:
        now_s = time.monotonic()
        self.began_s = self.began_s or now_s
        missing_s = now_s - self.began_s - self.num_samples / RATE - self.gap_s
        if missing_s > 0:
            self.num_late += 1
            self.gap_s += missing_s
        self.num_samples += num_samples


class Gateways:
    """Gateways behind a door. ``await apply()`` runs an event."""

    def __init__(self, port: int) -> None:
        config = ClusterConfig(door=DoorSettings(port=port, haproxy=True))
        self.door = DoorReplica(ReplicaSpec(name="door", kind="door", generation="1", config=config), "127.0.0.1")
        self._started: list[GatewayProcess] = []
        self.ready = [self._start(), self._start()]

    def _start(self) -> GatewayProcess:
        self._started.append(GatewayProcess(str(len(self._started))))
        return self._started[-1]

    def report(self, *leaving: GatewayProcess) -> bool:
        gateways = [one.status() for one in self.ready] + [one.status("draining") for one in leaving]
        return self.door.report(Members(gateways=tuple(gateways))).state == "ready"

    def wait_until_open(self) -> None:
        while not self.report():
            time.sleep(0.1)

    async def apply(self, event: str) -> None:
        if event == "kill":
            self.ready.pop(0).process.kill()
            await asyncio.to_thread(self.report)
        elif event == "upgrade":
            for old in list(self.ready):
                await self._add()
                await self._drain(old)
        elif event == "scale":
            await self._add()
            await self._drain(self.ready[-1])

    async def _add(self) -> None:
        self.ready.append(await asyncio.to_thread(self._start))
        await asyncio.to_thread(self.report)

    async def _drain(self, gateway: GatewayProcess) -> None:
        self.ready.remove(gateway)
        await asyncio.to_thread(self.report, gateway)
        gateway.process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        for gateway in self._started:
            gateway.process.kill()
            gateway.process.communicate()
        self.door.kill()


async def measure(event: str, num_listeners: int) -> dict[str, object]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    gateways = await asyncio.to_thread(Gateways, port)
    try:
        await asyncio.to_thread(gateways.wait_until_open)
        listeners = [Listener(f"ws://127.0.0.1:{port}") for _ in range(num_listeners)]
        async with asyncio.TaskGroup() as group:
            for listener in listeners:
                group.create_task(listener.run())
            await asyncio.sleep(EVENT_S)
            await gateways.apply(event)
    finally:
        await asyncio.to_thread(gateways.close)
    return report(event, listeners)


def report(event: str, listeners: list[Listener]) -> dict[str, object]:
    others = [listener for listener in listeners if listener.status == "completed"]
    expected = len(TEXT) * MS_PER_CHAR * RATE // 1_000
    return {
        "event": event,
        "replies": dict(Counter(listener.status for listener in listeners)),
        "different_samples": sum(abs(one.num_samples - expected) > RATE * 80 // 1_000 for one in others),
        "replies_with_gaps": sum(one.gap_s > 0 for one in others),
        "longest_gap_ms": round(1_000 * max((one.gap_s for one in others), default=0.0), 1),
        "late_packets": sum(one.num_late for one in others),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--listeners", type=int, default=100)
    parser.add_argument("--events", default="none,kill,upgrade,scale")
    args = parser.parse_args()
    found = [asyncio.run(measure(event, args.listeners)) for event in args.events.split(",")]
    for row in found:
        print(row)
    print(json.dumps({"benchmark": "cluster_events", "listeners": args.listeners, "events": found}))


if __name__ == "__main__":
    main()
