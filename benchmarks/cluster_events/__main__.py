"""Kill, replace, add and cut off gateways and engines under paced replies, and measure what listeners miss.

    python -m benchmarks.cluster_events [--listeners 200] [--gateways 2] [--voice fake] [--seconds 15]
        [--events none,kill,upgrade]

Replies are PCM at 16 kHz with a lead of 2 s, begun before the event, and compared with an uninterrupted one.

Gateways with the fake engine behind HAProxy: ``none`` is the load without an event, ``kill`` sends SIGKILL to one,
``upgrade`` replaces all in turn, ``scale`` goes from one to four and back, with as many new replies when there are
four. Listeners of a gateway that dies go on at another one by a resync; its death is left to HAProxy to find.

Two engine processes behind a server with as many gateways: ``engines`` is the load without an event, ``engine`` sends
SIGKILL to one. ``--voice`` is ``fake``, whose model computes checksums, or ``embedded``.

Cut off by a proxy that stops forwarding: ``partition`` cuts a gateway off from its engine, ``door`` HAProxy from its
gateway; reported is also how long a refusal takes from when the cut is known.

``replies`` are counted by their terminal events, ``refused`` by code, ``max_difference`` is that of a sample. A packet
is late when it comes after the listener has run out of audio. ``idle_cores`` are those of the machine until the event,
and in the seconds after it: near 0, gaps come from the load. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time

import psutil

from benchmarks.cluster_events.engines import Engines
from benchmarks.cluster_events.gateways import Gateways
from benchmarks.cluster_events.listener import Listener, report, speak_whole
from benchmarks.cluster_events.partitions import measure_door_partition, measure_engine_partition

# Seconds after the first audio of all.
EVENT_S = 4.0
AFTER_S = 3.0
# Of the fake engine's speech.
CHAR_S = 0.06
PARTITIONS = {"partition": measure_engine_partition, "door": measure_door_partition}


def open_stage(event: str, args: argparse.Namespace) -> Gateways | Engines:
    if event in ("engines", "engine"):
        return Engines(args.voice, args.gateways)
    return Gateways(1 if event == "scale" else args.gateways, round(args.seconds / CHAR_S))


class IdleCores:
    """Idle cores of the machine since the last call."""

    def __init__(self) -> None:
        self._idle_s, self._at_s = psutil.cpu_times().idle, time.monotonic()

    def pop(self) -> float:
        before = self._idle_s, self._at_s
        self._idle_s, self._at_s = psutil.cpu_times().idle, time.monotonic()
        return round((self._idle_s - before[0]) / (self._at_s - before[1]), 2)


async def measure(event: str, args: argparse.Namespace) -> dict[str, object]:
    stage = await asyncio.to_thread(open_stage, event, args)
    listeners: list[Listener] = []
    try:
        whole = await speak_whole(stage.url, stage.settings, stage.text)
        async with asyncio.TaskGroup() as group:

            async def speak() -> None:
                added = [Listener(stage.url, stage.settings, stage.text) for _ in range(args.listeners)]
                listeners.extend(added)
                for listener in added:
                    group.create_task(listener.run())

            await speak()
            idle = IdleCores()
            await asyncio.sleep(EVENT_S)
            idle_cores = [idle.pop()]
            for listener in listeners:
                listener.mark_event()
            found = await stage.apply(event, speak)
            await asyncio.sleep(AFTER_S)
            idle_cores.append(idle.pop())
    finally:
        await asyncio.to_thread(stage.close)
    return found | {"idle_cores": idle_cores} | report(listeners, whole)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--listeners", type=int, default=200)
    parser.add_argument("--gateways", type=int, default=2)
    parser.add_argument("--voice", choices=("fake", "embedded"), default="fake")
    parser.add_argument("--seconds", type=float, default=15.0, help="of a reply of gateways with the fake engine")
    parser.add_argument("--events", default="none,kill,upgrade,scale,engines,engine,partition,door")
    args = parser.parse_args()
    rows = []
    for event in args.events.split(","):
        load = os.getloadavg()[0]
        work = PARTITIONS[event](args.listeners) if event in PARTITIONS else measure(event, args)
        rows.append({"event": event, "load": round(load, 1)} | asyncio.run(work))
        print(rows[-1], flush=True)
    setup = {name: getattr(args, name) for name in ("listeners", "gateways", "voice", "seconds")}
    print(json.dumps({"benchmark": "cluster_events"} | setup | {"events": rows}))


if __name__ == "__main__":
    main()
