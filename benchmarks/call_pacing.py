"""Measure how evenly packets of many concurrent calls are sent, and how soon replies stop at a barge-in.

    python -m benchmarks.call_pacing [--lines 64] [--speaking 8] [--rounds 8] [--engine fake|embedded] [--config FILE]
        [--server-cores 0-1] [--client-cores 2-3] [--stolen PERCENT]

Four processes: the server, its engine with the embedded voice, the quiet calls, and the active calls, which measure
with a clock of their own. Every call has noise and a reply to interrupt, so the VAD processes all of its audio. An
active call receives a long reply; after some seconds its caller speaks a sentence, and then the next reply starts.

The lateness of a packet is relative to an even row of 20 ms, which starts at the earliest packet of its reply. Speech
begins 20 ms before its first packet is sent. ``--stolen`` takes a share of the server's cores away
(``benchmarks.cpu_steal``). The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import psutil
from websockets.asyncio.client import ClientConnection, connect

from benchmarks.barge_in import at_level, packets, percentile, sentences
from benchmarks.cpu_steal import AT_WORK, percent_of_a_core
from benchmarks.gateway_cpu import cores

FRAME_S = 0.02
# Seconds of a round: playout, caller's speech, silence.
REPLY_S, SENTENCE_S, PAUSE_S = 5.0, 1.0, 0.5
ROUND_S = REPLY_S + SENTENCE_S + PAUSE_S
# Packets of all lines do not leave at once.
PHASES = 16
# A reply begins with a burst.
LEAD_PACKETS = 40
NOISE_DB = -45.0
LATE_MS = 10.0
TEXT = "This is a rather long answer to a rather short question, and it goes on and on. " * 4
SCRIPT = {"ms_per_char": 60.0, "first_chunk_s": 0.02, "real_time_factor": 0.1}
SETTINGS = {"listen.port": 0, "log.level": "error", "limits.text_timeout_s": 3_600}


@dataclass
class CallLine:
    name: str
    arrivals_s: list[float] = field(default_factory=list)
    # When the caller began to speak.
    voices_s: list[float] = field(default_factory=list)
    clears_s: list[float] = field(default_factory=list)

    def late_ms(self) -> list[float]:
        return [late for start_s, end_s in self._replies() for late in lateness(self._between(start_s, end_s))]

    def spoken_over_ms(self) -> list[float]:
        """Milliseconds from the caller's first sound to the last packet, of all barge-ins detected in time."""
        found = []
        for voice_s in self.voices_s:
            clear_s = next((clear_s for clear_s in self.clears_s if voice_s < clear_s < voice_s + SENTENCE_S), None)
            if clear_s is not None:
                found.append(1000 * (self._between(voice_s - 1, voice_s + SENTENCE_S)[-1] - voice_s))
        return found

    def _replies(self) -> Iterator[tuple[float, float]]:
        return pairwise([0.0, *self.voices_s])

    def _between(self, start_s: float, end_s: float) -> list[float]:
        settled_s = start_s + SENTENCE_S if start_s in self.voices_s else start_s
        return [arrival_s for arrival_s in self.arrivals_s if settled_s < arrival_s < end_s]


def lateness(arrivals_s: list[float]) -> list[float]:
    """Lateness of the packets of a reply, without the first burst."""
    places = [arrival - number * FRAME_S for number, arrival in enumerate(arrivals_s)][LEAD_PACKETS:]
    return [1000 * (place - min(places)) for place in places]


def started(name: str) -> str:
    start = {"call_control_id": name, "media_format": {"encoding": "PCMU", "sample_rate": 8_000}}
    return json.dumps({"event": "start", "stream_id": "s", "start": start})


def media(packet: bytes, number: int) -> str:
    payload = base64.b64encode(packet).decode()
    return f'{{"event":"media","media":{{"chunk":{number},"payload":"{payload}","track":"inbound"}}}}'


async def call(url: str, line: CallLine, number: int, sound: Iterator[tuple[bytes, bool]]) -> None:
    """Send the caller's audio; each packet has a flag for the start of a sentence."""
    async with connect(f"{url}/v1/calls/telnyx", compression=None, proxy=None) as socket:
        await socket.send(started(line.name))
        hearing = asyncio.create_task(hear(socket, line))
        due_s = time.perf_counter() + FRAME_S * (number % PHASES) / PHASES
        for chunk, (packet, begins) in enumerate(sound):
            if begins:
                line.voices_s.append(time.perf_counter() - FRAME_S)
            await socket.send(media(packet, chunk))
            due_s += FRAME_S
            await asyncio.sleep(max(due_s - time.perf_counter(), 0.0))
        hearing.cancel()


async def hear(socket: ClientConnection, line: CallLine) -> None:
    async for message in socket:
        now_s = time.perf_counter()
        if '"media"' in str(message):
            line.arrivals_s.append(now_s)
        elif '"clear"' in str(message):
            line.clears_s.append(now_s)


def rounds(num: int, number: int, voices: list[list[bytes]]) -> Iterator[tuple[bytes, bool]]:
    """Generate the caller's audio: noise, and one sentence per round, at another time for each call."""
    hum = humming(number)
    reply_s = REPLY_S + 1.0 + 0.37 * number
    for one in range(num):
        voice = voices[(number + 8 * one) % len(voices)][: round(SENTENCE_S / FRAME_S)]
        yield from itertools.islice(hum, round(reply_s / FRAME_S))
        yield from ((packet, at == 0) for at, packet in enumerate(voice))
        yield from itertools.islice(hum, round((SENTENCE_S + PAUSE_S) / FRAME_S) - len(voice))
        reply_s = REPLY_S


async def speak(url: str) -> None:
    """Run the agent: long replies on the active calls, a reply without text on the others."""
    async with connect(f"{url}/v1/calls", compression=None, proxy=None) as agent:
        async for message in agent:
            event = json.loads(message)
            match event["type"]:
                case "call.connected":
                    speaks = event["provider_call_id"].startswith("spoken")
                    said = {"text": TEXT} if speaks else {"text": "", "end": False}
                    await agent.send(json.dumps({"type": "say", "call_id": event["call_id"], **said}))
                case "reply.interrupted" if event["cause"] == "caller":
                    again = json.dumps({"type": "say", "call_id": event["call_id"], "text": TEXT})
                    asyncio.get_running_loop().call_later(SENTENCE_S, asyncio.ensure_future, agent.send(again))


async def listen(url: str, num_lines: int, num_rounds: int) -> list[CallLine]:
    voices = [list(packets(voice)) for voice in sentences(24)]
    lines = [CallLine(f"spoken-{number}") for number in range(num_lines)]
    agent = asyncio.create_task(speak(url))
    await asyncio.sleep(0.5)
    sounds = [rounds(num_rounds, number, voices) for number in range(num_lines)]
    await asyncio.gather(*(call(url, *each) for each in zip(lines, range(num_lines), sounds, strict=True)))
    agent.cancel()
    return lines


async def stay_quiet(url: str, num_lines: int) -> None:
    """Run the quiet calls until the server ends.

    Frames are packed here, with one clock for all calls, so that the callers use as little CPU as possible.
    """
    lines = [await quiet_line(url, number) for number in range(num_lines)]
    sounds = [humming(number) for number in range(num_lines)]
    due_s = time.perf_counter()
    for step in itertools.count():
        for number in range(step % PHASES, num_lines, PHASES):
            packet, _ = next(sounds[number])
            lines[number].transport.write(frame(media(packet, step // PHASES)))
        due_s += FRAME_S / PHASES
        await asyncio.sleep(max(due_s - time.perf_counter(), 0.0))


async def quiet_line(url: str, number: int) -> ClientConnection:
    socket = await connect(f"{url}/v1/calls/telnyx", compression=None, proxy=None)
    await socket.send(started(f"quiet-{number}"))
    return socket


def frame(text: str) -> bytes:
    """A client's message of less than 64 kB, with a mask of zeros."""
    data = text.encode()
    size = bytes([0x80 | len(data)]) if len(data) < 126 else bytes([0x80 | 126]) + len(data).to_bytes(2, "big")
    return b"\x81" + size + bytes(4) + data


def humming(number: int) -> Iterator[tuple[bytes, bool]]:
    """Endless noise of a call, with another start for each call."""
    hum = noise()
    return ((hum[at % len(hum)], False) for at in itertools.count(13 * number))


def noise() -> list[bytes]:
    rng = np.random.default_rng(1)
    return list(packets(at_level(rng.standard_normal(40_000).astype(np.float32), NOISE_DB)))


def server_command(engine: str, config: str | None) -> list[str]:
    if engine == "fake":
        return [sys.executable, "-m", "tests.realtime.fake_server", json.dumps(SETTINGS), json.dumps(SCRIPT)]

    flags = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    flags += ["--config", config] if config else []
    return [sys.executable, "-m", "realtime.cli", "serve", *flags]


def url_of(server: subprocess.Popen[bytes]) -> str:
    assert server.stdout is not None
    for line in server.stdout:
        *_, told = line.decode().split()
        if told.isdigit():
            return f"ws://127.0.0.1:{told}"
        if told.startswith("ws"):
            return told.removesuffix("/v1/speech")
    raise SystemExit("the server did not come up")


def cpu_s(server: psutil.Process) -> dict[str, float]:
    """CPU seconds that the server and its engine have used."""
    names = {"server": [server], "engine": server.children(recursive=True)}
    return {name: sum(sum(one.cpu_times()[:2]) for one in group) for name, group in names.items()}


def report(lines: list[CallLine]) -> dict[str, float]:
    late = [late for line in lines for late in line.late_ms()]
    if not late:
        raise SystemExit("nothing was spoken")
    share = 100 * sum(one > LATE_MS for one in late) / len(late)
    print(f"late by more than {LATE_MS:.0f} ms: {share:.3f} % of {len(late)} packets; ", end="")
    print(f"p50 {percentile(late, 0.5):.1f} ms, p99 {percentile(late, 0.99):.1f}, worst {max(late):.1f}")
    over = [over for line in lines for over in line.spoken_over_ms()]
    print(f"barge-in: {len(over)} of {sum(len(line.voices_s) for line in lines)} noticed; ", end="")
    print(f"last packet p50 {percentile(over, 0.5):.0f} ms after speech begins, ", end="")
    print(f"p95 {percentile(over, 0.95):.0f}, worst {max(over, default=float('nan')):.0f}; ", end="")
    false = sum(len(line.clears_s) for line in lines) - len(over)
    print(f"{false} more clears than that")
    found = {"late_percent": share, "late_ms_p99": percentile(late, 0.99), "late_ms_max": max(late)}
    return found | {"over_ms_p95": percentile(over, 0.95), "over_ms_max": max(over, default=float("nan"))}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lines", type=int, default=64)
    parser.add_argument("--speaking", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--engine", choices=("fake", "embedded"), default="fake")
    parser.add_argument("--config", help="TOML file for the server with the embedded voice")
    parser.add_argument("--server-cores", type=cores, default=os.sched_getaffinity(0))
    parser.add_argument("--client-cores", type=cores, default=os.sched_getaffinity(0))
    parser.add_argument(
        "--stolen", type=percent_of_a_core, metavar="PERCENT", default=0.0, help="share of the server's cores"
    )
    parser.add_argument("--quiet", metavar="URL", help="run as the process of the quiet calls (internal)")
    args = parser.parse_args()
    if args.quiet:
        asyncio.run(stay_quiet(args.quiet, args.lines))
        return
    os.sched_setaffinity(0, args.client_cores)
    command = server_command(args.engine, args.config)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, preexec_fn=lambda: os.sched_setaffinity(0, args.server_cores)
    ) as server:
        try:
            with stolen(args.server_cores, args.stolen):
                measure(server, args)
        finally:
            server.terminate()


@contextmanager
def stolen(server_cores: set[int], percent: float) -> Iterator[None]:
    if not percent:
        yield
        return
    named = ",".join(map(str, sorted(server_cores)))
    command = [sys.executable, "-m", "benchmarks.cpu_steal", "--cores", named, "--percent", str(percent)]
    with subprocess.Popen([*command, "--parent", str(os.getpid())], stdout=subprocess.PIPE, text=True) as thief:
        assert thief.stdout is not None
        if thief.stdout.readline().strip() != AT_WORK:
            raise SystemExit("nothing could be stolen")
        try:
            yield
        finally:
            thief.terminate()


def measure(server: subprocess.Popen[bytes], args: argparse.Namespace) -> None:
    url, process = url_of(server), psutil.Process(server.pid)
    num_quiet = args.lines - args.speaking
    quiet = [sys.executable, "-m", "benchmarks.call_pacing", "--quiet", url, "--lines", str(num_quiet)]
    with subprocess.Popen(quiet) as others:
        begun, begun_s = cpu_s(process), time.perf_counter()
        try:
            lines = asyncio.run(listen(url, args.speaking, args.rounds))
        finally:
            others.terminate()
        took_s = time.perf_counter() - begun_s
        cores = {name: (used_s - begun[name]) / took_s for name, used_s in cpu_s(process).items()}
    used = " and ".join(f"{100 * share:.0f} % ({name})" for name, share in cores.items())
    print(f"{args.lines} lines, {args.speaking} spoken on, {args.engine} engine, {took_s:.0f} s; of a core: {used}")
    found = report(lines) | {f"{name}_cores": share for name, share in cores.items()}
    print(json.dumps({name: round(value, 3) for name, value in found.items()}))


if __name__ == "__main__":
    main()
