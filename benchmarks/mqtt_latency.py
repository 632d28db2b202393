"""Measure the round trip of a packet through a broker while many sessions play.

    python -m benchmarks.mqtt_latency [--sessions 50] [--seconds 20] [--packet-ms 60]

A real Mosquitto, a server with the fake engine, and the clients are processes of their own on loopback. Every client
has its own connection and receives an endless reply. A round trip runs from a client's ``ping`` to the ``pong`` of its
session: client, broker, server, broker, client, five times a second. The lateness of audio is relative to an even row,
which starts at the earliest packet. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from realtime.integration_config import MqttSettings
from realtime.mqtt.client import MqttAudio, MqttClientSession, open_session
from realtime.mqtt.connection import BrokerDisconnected
from realtime.protocol.mqtt import messages as say
from tests.realtime.mqtt.mqtt_client import mqtt_settings, running

PING_EVERY_S = 0.2
SETTLE_S = 2.0
TEXT = "This is a rather long answer to a rather short question, and it goes on and on. "
SCRIPT = {"ms_per_char": 60.0, "first_chunk_s": 0.02, "real_time_factor": 0.1}


@dataclass
class Measured:
    round_trips_ms: list[float] = field(default_factory=list)
    lateness_ms: list[float] = field(default_factory=list)
    num_packets: int = 0
    # Packets that did not come.
    num_gaps: int = 0


async def listen(settings: MqttSettings, number: int, seconds: float, packet_ms: int, measured: Measured) -> None:
    wanted = say.MqttOpen(format=say.MqttFormat(packet_ms=packet_ms), lead_ms=400)  # type: ignore[arg-type]
    async with open_session(settings, wanted, f"bench-{number}") as session:
        text = TEXT * round(2 * seconds)
        await session.send(say.MqttText(d=text[: round(1_000 * (seconds + 10) / SCRIPT["ms_per_char"])]))
        pinging = asyncio.create_task(ping(session))
        try:
            await hear(session, time.monotonic() + SETTLE_S, seconds, measured)
        finally:
            pinging.cancel()


async def ping(session: MqttClientSession) -> None:
    while True:
        await asyncio.sleep(PING_EVERY_S)
        with suppress(BrokerDisconnected):  # the session is about to end
            await session.send(say.MqttPing(d=str(time.perf_counter_ns())))


async def hear(session: MqttClientSession, from_s: float, seconds: float, measured: Measured) -> None:
    places_ms, expected = [], 0
    async for told in session:
        now_s = time.monotonic()
        if now_s >= from_s + seconds:
            break
        if isinstance(told, MqttAudio):
            measured.num_gaps += told.head.seq != expected
            expected = told.head.seq + 1
            if now_s >= from_s:
                places_ms.append(1_000 * now_s - told.head.ts_ms)
        elif isinstance(told, say.MqttPong) and now_s >= from_s:
            measured.round_trips_ms.append((time.perf_counter_ns() - int(told.d)) / 1e6)
        elif isinstance(told, say.MqttDone | say.MqttFailed | say.MqttClosed):
            raise SystemExit(f"a session ended: {told}")
    measured.num_packets += len(places_ms)
    measured.lateness_ms += [place - min(places_ms) for place in places_ms]


async def measure(settings: MqttSettings, num_sessions: int, seconds: float, packet_ms: int) -> Measured:
    measured = Measured()
    async with asyncio.TaskGroup() as clients:
        for number in range(num_sessions):
            clients.create_task(listen(settings, number, seconds, packet_ms, measured))
            await asyncio.sleep(1 / num_sessions)  # their packets do not all leave at once
    return measured


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def report(measured: Measured, num_sessions: int, seconds: float) -> dict[str, float]:
    rate = measured.num_packets / seconds
    print(f"{num_sessions} MQTT sessions, {rate:.0f} audio packets a second, {measured.num_gaps} missing")
    found: dict[str, float] = {"packets_per_s": rate, "missing": measured.num_gaps}
    for name, values in (
        ("round_trip_ms", measured.round_trips_ms),
        ("late_ms", measured.lateness_ms),
    ):
        found |= {f"{name}_p{share}": percentile(values, share / 100) for share in (50, 90, 99)}
        found[f"{name}_max"] = max(values)
        shown = ", ".join(f"{key.removeprefix(name + '_')} {found[key]:.1f}" for key in found if key.startswith(name))
        print(f"{name}: {shown} ({len(values)} measured)")
    return found


def cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def server_command(mqtt: MqttSettings) -> list[str]:
    settings = {"listen.port": 0, "log.level": "error", "speech.aligner": "even", "mqtt.url": mqtt.url}
    return [sys.executable, "-m", "tests.realtime.fake_server", json.dumps(settings), json.dumps(SCRIPT)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sessions", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--packet-ms", type=int, choices=(20, 40, 60), default=60)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running(Path(folder), "max_queued_messages 10000") as broker:
        settings = mqtt_settings(broker.port)
        with subprocess.Popen(server_command(settings), stdout=subprocess.PIPE) as server:
            try:
                found = watched(server, measure(settings, args.sessions, args.seconds, args.packet_ms), args)
            finally:
                server.terminate()
    print(json.dumps({name: round(value, 3) for name, value in found.items()}))


def watched(
    server: subprocess.Popen[bytes], measuring: Coroutine[None, None, Measured], args: argparse.Namespace
) -> dict[str, float]:
    assert server.stdout is not None
    server.stdout.readline()
    time.sleep(1.0)  # until it has come to the broker
    began_s, server_s, own_s = time.monotonic(), cpu_s(server.pid), time.process_time()
    measured = asyncio.run(measuring)
    took_s = time.monotonic() - began_s
    found = report(measured, args.sessions, args.seconds)
    cores = {
        "server_cores": (cpu_s(server.pid) - server_s) / took_s,
        "client_cores": (time.process_time() - own_s) / took_s,
    }
    print("of a core: server {server_cores:.2f}, clients {client_cores:.2f}".format(**cores))
    return found | cores


if __name__ == "__main__":
    main()
