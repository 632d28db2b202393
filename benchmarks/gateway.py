"""What sockets, wire and Opus cost without a model: a fake engine twice as fast as speech, paced to a short lead.

Clients in processes of their own open sessions that all speak at once for a while. Lateness of an audio message is how
much later it came than its position in the audio promises, against the timeliest message of its response; the first
second, in which the lead fills, does not count.

    python -m benchmarks.gateway [--sessions 500] [--seconds 20] [--encoding opus] [--processes 4]

The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import numpy as np
import psutil

from realtime.client import open_session
from realtime.protocol import events as ev

CHARS_PER_S = 10
FAKE = {"ms_per_char": 1000 / CHARS_PER_S, "first_chunk_s": 0.08, "real_time_factor": 0.5}
LEAD_MS = 200
SETTLE_S = 1.0


class Share(msgspec.Struct):
    """What one process of clients does."""

    url: str
    num_sessions: int
    seconds: float
    encoding: str


class Heard(msgspec.Struct):
    """What it saw of all its sessions."""

    num_packets: int = 0
    num_messages: int = 0
    num_failed: int = 0
    lateness_ms: list[float] = []


async def listen(share: Share, heard: Heard) -> None:
    settings = ev.Settings(format=ev.Format(encoding=share.encoding), lead_ms=LEAD_MS)
    text = "word " * int(share.seconds * CHARS_PER_S / 5)
    loop, rate, offsets_s = asyncio.get_running_loop(), 24_000, []
    async with await open_session(share.url) as client:
        await client.send(ev.ResponseCreate(settings=settings, text=text, end=True))
        async for message in client:
            match message:
                case ev.ResponseCreated():
                    rate = message.format.sample_rate
                case ev.AudioMessage():
                    heard.num_messages += 1
                    heard.num_packets += len(message.packets)
                    if message.sample_time > SETTLE_S * rate:
                        offsets_s.append(loop.time() - message.sample_time / rate)
                case ev.ResponseDone():
                    heard.num_failed += message.status != "completed"
                    break
    if not offsets_s:
        heard.num_failed += 1
        return
    timeliest_s = min(offsets_s)
    heard.lateness_ms += [round(1000 * (offset_s - timeliest_s), 2) for offset_s in offsets_s]


async def take_share(share: Share) -> Heard:
    heard = Heard()
    async with asyncio.TaskGroup() as listeners:
        for number in range(share.num_sessions):
            listeners.create_task(listen(share, heard))
            if number % 10 == 9:
                await asyncio.sleep(0.02)
    return heard


@contextlib.contextmanager
def server() -> Iterator[tuple[psutil.Process, str]]:
    settings = {"listen.port": 0, "log.level": "error", "limits.max_active_responses": 10_000}
    command = [sys.executable, "-m", "tests.realtime.fake_server", json.dumps(settings), json.dumps(FAKE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        try:
            yield psutil.Process(process.pid), f"ws://127.0.0.1:{port}"
        finally:
            process.terminate()


def run_clients(shares: list[Share]) -> list[Heard]:
    command = [sys.executable, "-m", "benchmarks.gateway"]
    processes = [
        subprocess.Popen([*command, "--share", msgspec.json.encode(share)], stdout=subprocess.PIPE) for share in shares
    ]
    return [msgspec.json.decode(process.communicate()[0], type=Heard) for process in processes]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--encoding", default="opus")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--share", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.share:
        share = msgspec.json.decode(args.share, type=Share)
        print(msgspec.json.encode(asyncio.run(take_share(share))).decode())
        return
    with server() as (process, url):
        share = Share(url, args.sessions // args.processes, args.seconds, args.encoding)
        before = process.cpu_times()
        heard = run_clients([share] * args.processes)
        after = process.cpu_times()
        rss_mb = process.memory_info().rss / 1e6
    cpu_s = after.user + after.system - before.user - before.system
    lateness_ms = np.concatenate([part.lateness_ms for part in heard])
    num_packets = sum(part.num_packets for part in heard)
    line = {
        "sessions": args.sessions,
        "encoding": args.encoding,
        "failed": sum(part.num_failed for part in heard),
        "packets": num_packets,
        "packets_per_s_per_core": round(num_packets / cpu_s),
        "cpu_us_per_message": round(1e6 * cpu_s / sum(part.num_messages for part in heard)),
        "lateness_ms": {f"p{at}": round(float(np.percentile(lateness_ms, at)), 2) for at in (50, 95, 99)},
        "rss_mb": round(rss_mb, 1),
    }
    print("\n".join(f"{name:<24} {value}" for name, value in line.items()))
    print(json.dumps(line))


if __name__ == "__main__":
    main()
