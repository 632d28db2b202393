"""Measure what it costs that a session can be resumed: memory of an idle session, CPU of a reply.

    python -m benchmarks.resume_cost [--sessions 400] [--replies 40] [--rounds 5]

Servers are processes of their own with the fake engine, one after the other: a fresh one for each figure. Rounds with
and without ``?resume=true`` alternate, and ``cpu_ratio`` is the median of their paired ratios. Replies are Opus at 32
kbit/s in burst, read as fast as they come; a client reports its playback once a second of audio, as players do, so
that what was played is not retained. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics

import psutil

from realtime.client import NativeClient, open_session
from realtime.memory import resident_bytes
from realtime.protocol import events as ev
from tests.realtime.server_process import ServerProcess, server

TEXT = "One two three four five six seven eight nine ten. " * 8
SCRIPT = {"ms_per_char": 40.0, "first_chunk_s": 0.02, "real_time_factor": 0.01}
RATE = 24_000
SETTINGS = ev.NativeSpeechSettings(format=ev.NativeAudioFormat(encoding="opus", sample_rate=RATE), pace="burst")
QUERIES = {"plain": "", "resumable": "?resume=true"}
# The first sessions and replies load modules and fill caches.
NUM_WARM_UP = 20


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


async def cpu_ms_per_speech_second(query: str, num_replies: int) -> float:
    with server(SCRIPT, log__level="error") as running:
        client = await open_session(running.url + query)
        process = psutil.Process(running.process.pid)
        await speak(client, 0)
        before = process.cpu_times()
        speech_s = sum([await speak(client, number) for number in range(1, num_replies + 1)])
        after = process.cpu_times()
        await client.aclose()
    return 1000 * (after.user + after.system - before.user - before.system) / speech_s


async def measure(num_sessions: int, num_replies: int, num_rounds: int) -> dict[str, object]:
    memory: dict[str, list[float]] = {name: [] for name in QUERIES}
    cpu: dict[str, list[float]] = {name: [] for name in QUERIES}
    for _ in range(num_rounds):
        for name, query in QUERIES.items():
            memory[name].append(await idle_bytes(query, num_sessions))
            cpu[name].append(await cpu_ms_per_speech_second(query, num_replies))
    more_bytes = [after - before for before, after in zip(memory["plain"], memory["resumable"], strict=True)]
    ratios = [after / before for before, after in zip(cpu["plain"], cpu["resumable"], strict=True)]
    return {
        "benchmark": "resume_cost",
        "idle_session_bytes": {name: round(statistics.median(values)) for name, values in memory.items()},
        "more_bytes": [round(value) for value in more_bytes],
        "cpu_ms_per_speech_s": {name: round(statistics.median(values), 2) for name, values in cpu.items()},
        "cpu_ratios": [round(value, 3) for value in ratios],
        "cpu_ratio": round(statistics.median(ratios), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=400)
    parser.add_argument("--replies", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print(json.dumps(asyncio.run(measure(args.sessions, args.replies, args.rounds))))


if __name__ == "__main__":
    main()
