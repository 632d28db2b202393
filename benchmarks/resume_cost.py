"""Measure what it costs that a session can be resumed: memory of an idle session, CPU of a reply.

    python -m benchmarks.resume_cost [--sessions 400] [--rounds 5] [--pairs 60]

Servers are processes of their own with the fake engine, for the memory a fresh one for each figure. For the CPU time
one server speaks to two clients in turn, with and without ``?resume=true``, so that both meet the same load; the order
changes with each pair. Replies are Opus in burst, read as fast as they come. A client reports its playback once a
second of audio, as players do, so that what was played is not retained. ``cpu_ratio`` is that of the lower quartiles,
since other load only adds, with a standard error by resampling. On a busy machine that error is larger than the cost;
``ring_us_per_speech_s`` then says more: the queue of a reply by itself, which is nearly all that differs. The last
line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import statistics
import time

import numpy as np
import numpy.typing as npt
import psutil

from realtime.client import NativeClient, open_session
from realtime.memory import resident_bytes
from realtime.protocol import events as ev
from sessions.audio.opus import OpusPacket
from sessions.audio.pacer import Pacer, PacerSettings, UnderrunCause
from sessions.ring import PacketRing
from tests.realtime.server_process import ServerProcess, server

TEXT = "One two three four five six seven eight nine ten. " * 20
SCRIPT = {"ms_per_char": 40.0, "first_chunk_s": 0.02, "real_time_factor": 0.01}
RATE = 24_000
SETTINGS = ev.NativeSpeechSettings(format=ev.NativeAudioFormat(encoding="opus", sample_rate=RATE), pace="burst")
QUERIES = {"plain": "", "resumable": "?resume=true"}
# The first sessions and replies load modules and fill caches.
NUM_WARM_UP = 20
NUM_WARM_UP_PAIRS = 3
NUM_RESAMPLINGS = 1_000
PACKET_SAMPLES = RATE // 50
RING_SPEECH_S = 20
NUM_RING_RUNS = 300

Floats = npt.NDArray[np.float64]


async def open_all(running: ServerProcess, query: str, num_sessions: int) -> list[NativeClient]:
    return [await open_session(running.url + query) for _ in range(num_sessions)]


async def idle_bytes(query: str, num_sessions: int) -> float:
    """Return the resident bytes of one idle session and its connection."""
    with server(SCRIPT, log__level="error", limits__max_connections=num_sessions + NUM_WARM_UP) as running:
        clients = await open_all(running, query, NUM_WARM_UP)
        before = resident_bytes(running.process.pid)
        clients += await open_all(running, query, num_sessions)
        used = resident_bytes(running.process.pid) - before
        for client in clients:
            client.abort()
    return used / num_sessions


async def speak(client: NativeClient, number: int) -> float:
    """Return the seconds of speech of one reply."""
    response_id = f"r{number}"
    await client.send(ev.ResponseCreate(response_id=response_id, settings=SETTINGS, text=TEXT, end=True))
    reported_s = 1.0
    async for event in client:
        if isinstance(event, ev.AudioMessage) and event.sample_time >= reported_s * RATE:
            await client.send(ev.PlaybackReport(response_id=response_id, played_ms=1000 * reported_s))
            reported_s += 1.0
        elif isinstance(event, ev.ResponseDone):
            assert event.status == "completed", event
            return event.audio_ms / 1000
    raise AssertionError("closed before the end of the reply")


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


async def cpu_ms_of_pairs(num_pairs: int) -> dict[str, list[float]]:
    """Return the CPU milliseconds for a second of speech, reply by reply."""
    found: dict[str, list[float]] = {name: [] for name in QUERIES}
    with server(SCRIPT, log__level="error") as running:
        process = psutil.Process(running.process.pid)
        clients = {name: await open_session(running.url + query) for name, query in QUERIES.items()}
        for number in range(NUM_WARM_UP_PAIRS + num_pairs):
            for name in sorted(clients, reverse=number % 2 == 1):
                before_s = cpu_s(process)
                speech_s = await speak(clients[name], number)
                found[name].append(1000 * (cpu_s(process) - before_s) / speech_s)
        for client in clients.values():
            await client.aclose()
    return {name: values[NUM_WARM_UP_PAIRS:] for name, values in found.items()}


async def measure(num_sessions: int, num_rounds: int, num_pairs: int) -> dict[str, object]:
    memory: dict[str, list[float]] = {name: [] for name in QUERIES}
    for _ in range(num_rounds):
        for name, query in QUERIES.items():
            memory[name].append(await idle_bytes(query, num_sessions))
    more_bytes = [after - before for before, after in zip(memory["plain"], memory["resumable"], strict=True)]
    cpu_ms = await cpu_ms_of_pairs(num_pairs)
    plain, resumable = (np.array(cpu_ms[name]) for name in QUERIES)
    return {
        "benchmark": "resume_cost",
        "load": round(os.getloadavg()[0], 1),
        "idle_session_bytes": {name: round(statistics.median(values)) for name, values in memory.items() if values},
        "more_bytes": [round(value) for value in more_bytes],
        "cpu_ms_per_speech_s": {"plain": summary(plain), "resumable": summary(resumable)},
        "cpu_ratio": round(quartile(resumable) / quartile(plain), 4),
        "ring_us_per_speech_s": {"plain": ring_us_per_speech_s(False), "resumable": ring_us_per_speech_s(True)},
        "standard_error": round(ratio_error(plain, resumable), 4),
    }


def ring_us_per_speech_s(retains: bool) -> float:
    """Return the shortest time for a second of speech in the queue of a reply, which may retain it."""
    packets = [OpusPacket(0, PACKET_SAMPLES, bytes(160))] * 50
    best_s = math.inf
    for _ in range(NUM_RING_RUNS):
        ring = PacketRing("r", Pacer(RATE, PacerSettings(lead_ms=None)), lambda _: None, retains=retains)
        before_s = time.perf_counter()
        for second in range(RING_SPEECH_S):
            ring.put(packets, second, UnderrunCause.ENGINE)
            while ring.pop_due(second) is not None:
                pass
            ring.report(second * RATE, second)
        best_s = min(best_s, time.perf_counter() - before_s)
    return round(1e6 * best_s / RING_SPEECH_S, 1)


def quartile(values: Floats) -> float:
    return float(np.percentile(values, 25))


def summary(values: Floats) -> dict[str, float]:
    return {"quartile": round(quartile(values), 3), "mean": round(float(values.mean()), 3)}


def ratio_error(plain: Floats, resumable: Floats) -> float:
    rng = np.random.default_rng(0)
    draws = rng.integers(0, len(plain), (NUM_RESAMPLINGS, len(plain)))
    return float(np.std([quartile(resumable[draw]) / quartile(plain[draw]) for draw in draws]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=60)
    args = parser.parse_args()
    print(json.dumps(asyncio.run(measure(args.sessions, args.rounds, args.pairs))))


if __name__ == "__main__":
    main()
