"""Many calls at once: how even the packets leave, and how long the caller is spoken over.

``python -m benchmarks.calls [--lines 64] [--speaking 8] [--engine fake|embedded]``: the server is a process of its own.
Every line sends noise that the detector has to look at; in some of them a reply is spoken, into which a voice comes
after a while. A packet is late by how much it comes after its place in an even row of 20 ms, which begins with the
earliest.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from websockets.asyncio.client import ClientConnection, connect

from benchmarks.barge_in import at_level, packets, percentile, sentences
from sessions.audio.pcm import Pcm

FRAME_S = 0.02
SPEAK_S, LINGER_S = 12.0, 1.0
NOISE_DB = -45.0
TEXT = "This is a rather long answer to a rather short question, and it goes on and on. " * 12
SCRIPT = {"ms_per_char": 60.0, "first_chunk_s": 0.02, "real_time_factor": 0.1}


@dataclass
class Line:
    number: int
    speaks: bool
    arrivals_s: list[float] = field(default_factory=list)
    voice_began_s: float = 0.0
    cleared_s: float = 0.0

    def late_ms(self) -> list[float]:
        """Of the packets before the voice came, without the burst that the lead begins with."""
        before = [arrival for arrival in self.arrivals_s if not self.voice_began_s or arrival < self.voice_began_s]
        places = [arrival - number * FRAME_S for number, arrival in enumerate(before)][40:]
        return [1000 * (place - min(places)) for place in places]


def media(packet: bytes, number: int) -> str:
    return json.dumps(
        {"event": "media", "media": {"chunk": number, "payload": base64.b64encode(packet).decode(), "track": "inbound"}}
    )


def said(voice: list[bytes], noise: list[bytes], line: Line) -> Iterator[bytes]:
    """Noise; on a line that is spoken into, a voice after a while."""
    until = int(SPEAK_S / FRAME_S) + 7 * line.number
    for number in range(until + int(LINGER_S / FRAME_S)):
        speaking = line.speaks and 0 <= number - until < len(voice)
        if speaking and number == until:
            line.voice_began_s = time.perf_counter()
        yield voice[number - until] if speaking else noise[(number + 13 * line.number) % len(noise)]


async def call(url: str, line: Line, voice: list[bytes], noise: list[bytes]) -> None:
    async with connect(f"{url}/v1/calls/telnyx", compression=None, proxy=None) as socket:
        start = {"call_control_id": f"c{line.number}", "media_format": {"encoding": "PCMU", "sample_rate": 8_000}}
        await socket.send(json.dumps({"event": "start", "stream_id": "s", "start": start}))
        hearing = asyncio.create_task(hear(socket, line))
        due_s = time.perf_counter() + FRAME_S * line.number / 64
        for number, packet in enumerate(said(voice, noise, line)):
            await socket.send(media(packet, number))
            due_s += FRAME_S
            await asyncio.sleep(max(due_s - time.perf_counter(), 0.0))
        hearing.cancel()


async def hear(socket: ClientConnection, line: Line) -> None:
    async for message in socket:
        event = json.loads(message)
        if event["event"] == "media":
            line.arrivals_s.append(time.perf_counter())
        elif event["event"] == "clear":
            line.cleared_s = time.perf_counter()


async def speak(url: str, lines: list[Line]) -> None:
    speaking = {f"c{line.number}" for line in lines if line.speaks}
    async with connect(f"{url}/v1/calls", compression=None, proxy=None) as agent:
        async for message in agent:
            event = json.loads(message)
            if event["type"] == "call.connected" and event["provider_call_id"] in speaking:
                await agent.send(json.dumps({"type": "say", "call_id": event["call_id"], "text": TEXT}))


async def measure(url: str, num_lines: int, num_speaking: int) -> list[Line]:
    voice, noise = speech_and_noise()
    lines = [Line(number, number < num_speaking) for number in range(num_lines)]
    agent = asyncio.create_task(speak(url, lines))
    await asyncio.gather(*(call(url, line, voice, noise) for line in lines))
    agent.cancel()
    return lines


def speech_and_noise() -> tuple[list[bytes], list[bytes]]:
    voice: Pcm = next(sentences(1))
    rng = np.random.default_rng(1)
    return list(packets(voice)), list(packets(at_level(rng.standard_normal(40_000).astype(np.float32), NOISE_DB)))


def server_command(engine: str) -> list[str]:
    if engine == "fake":
        settings = {"listen.port": 0, "log.level": "error"}
        return [sys.executable, "-m", "tests.realtime.fake_server", json.dumps(settings), json.dumps(SCRIPT)]
    return [sys.executable, "-m", "realtime.cli", "serve", "--set", "listen.port=0", "--set", "log.level=error"]


def url_of(server: subprocess.Popen[bytes]) -> str:
    assert server.stdout is not None
    for line in server.stdout:
        *_, told = line.decode().split()
        if told.isdigit():
            return f"ws://127.0.0.1:{told}"
        if told.startswith("ws"):
            return told.removesuffix("/v1/speech")
    raise SystemExit("the server did not come up")


def report(lines: list[Line]) -> None:
    late = [late for line in lines if line.speaks for late in line.late_ms()]
    if not late:
        raise SystemExit("nothing was spoken")
    share = 100 * sum(one > 10 for one in late) / len(late)
    print(f"{len(late)} packets: p50 {percentile(late, 0.5):.1f} ms late, p99 {percentile(late, 0.99):.1f}, ", end="")
    print(f"worst {max(late):.1f}; {share:.2f} % late by more than 10 ms")
    cut = [line for line in lines if line.cleared_s > line.voice_began_s > 0]
    delays = [1000 * (line.arrivals_s[-1] - line.voice_began_s) for line in cut]
    print(f"barge-in noticed on {len(cut)} of {sum(line.speaks for line in lines)}: ", end="")
    print(f"last packet {percentile(delays, 0.5):.0f} ms after the voice begins, worst {max(delays):.0f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lines", type=int, default=64)
    parser.add_argument("--speaking", type=int, default=8)
    parser.add_argument("--engine", choices=("fake", "embedded"), default="fake")
    args = parser.parse_args()
    with subprocess.Popen(server_command(args.engine), stdout=subprocess.PIPE) as server:
        try:
            report(asyncio.run(measure(url_of(server), args.lines, args.speaking)))
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
