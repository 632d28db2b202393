"""Measure how fast sessions resume after their connections are lost, and what listeners miss.

    python -m benchmarks.resume [--sessions 50] [--cuts 4] [--interval 1,5] [--rounds 1] [--grace 30]
    python -m benchmarks.resume --kill [--sessions 4] [--after 4]

The server is a process of its own with the fake engine; replies are PCM at 16 kHz with a lead of 2 s. Each client
resets its connection at random moments, after as many seconds as ``--interval`` says, and resumes on another. Reported
are the milliseconds from the opened connection to ``session.resumed`` and to the first new audio, silence by the
client's clock, and samples that were lost or repeated with other content. The last line is JSON.

With ``--kill`` the server has two gateways and the embedded voice. The gateway of the first client gets SIGKILL, and
its replies go on at the other one by ``resync``. Replies are compared with an uninterrupted one, in dB. ``others`` are
the clients of the gateway that lives.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field

import msgspec
import numpy as np
import psutil
from websockets.exceptions import WebSocketException

from realtime.client import NativeClient, open_session
from realtime.protocol import events as ev
from tests.realtime.server_process import server, wire_address

TEXT = "One two three four five six seven eight nine ten. " * 12
SCRIPT = {"ms_per_char": 40.0, "first_chunk_s": 0.02, "real_time_factor": 0.1}
SETTINGS = ev.NativeSpeechSettings(format=ev.NativeAudioFormat(encoding="pcm_s16le", sample_rate=16_000), lead_ms=2_000)
RATE = 16_000
VOICE_TEXT = "One two three four five. Six seven eight nine ten, eleven twelve? Thirteen fourteen fifteen sixteen. " * 2


@dataclass
class Listener:
    """Keeps what it has received; ``resumed_ms`` and ``audio_ms`` have a value for each cut."""

    url: str
    rng: random.Random
    num_cuts: int
    # Shortest and longest time between two cuts.
    interval_s: tuple[float, float] = (1.0, 5.0)
    pcm: bytearray = field(default_factory=bytearray)
    resumed_ms: list[float] = field(default_factory=list)
    audio_ms: list[float] = field(default_factory=list)
    silence_s: float = 0.0
    num_conflicts: int = 0
    status: str = ""
    began_s: float = 0.0

    async def run(self) -> None:
        client = await open_session(self.url + "?resume=true")
        session_id, token = client.created.session_id, client.created.resume_token
        await client.send(ev.ResponseCreate(response_id="r", settings=SETTINGS, text=TEXT, end=True))
        for _ in range(self.num_cuts):
            token = await self._listen(client, token, self.rng.uniform(*self.interval_s))
            if self.status:
                break
            client.abort()
            client = await open_session(self.url + "?resume=true")
            opened_s = time.monotonic()
            position = ev.ResumePosition(response_id="r", received_samples=len(self.pcm) // 2)
            await client.send(ev.SessionResume(session_id=session_id, token=token, responses=(position,)))
            token = await self._wait_for_audio(client, token, opened_s)
        await self._listen(client, token, 600.0)
        await client.aclose()

    async def _listen(self, client: NativeClient, token: str, duration_s: float) -> str:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(duration_s):
                while not self.status:
                    token = self._on_event(await anext(client), token)
        return token

    async def _wait_for_audio(self, client: NativeClient, token: str, opened_s: float) -> str:
        async for event in client:
            elapsed_ms = 1000 * (time.monotonic() - opened_s)
            token = self._on_event(event, token)
            if isinstance(event, ev.SessionResumed):
                self.resumed_ms.append(elapsed_ms)
            elif isinstance(event, ev.AudioMessage):
                self.audio_ms.append(elapsed_ms)
                break
            elif self.status:
                break
        return token

    def _on_event(self, event: ev.ServerEvent | ev.AudioMessage, token: str) -> str:
        match event:
            case ev.AudioMessage():
                self._on_audio(2 * event.sample_time, b"".join(event.packets))
            case ev.SessionResumed():
                return event.token
            case ev.ResponseDone():
                self.status = event.error.code if event.error else event.status
            case ev.ErrorEvent():
                self.status = event.code
        return token

    def _on_audio(self, at: int, data: bytes) -> None:
        now_s = time.monotonic()
        self.began_s = self.began_s or now_s
        played_s = len(self.pcm) / 2 / RATE + self.silence_s
        self.silence_s += max(now_s - self.began_s - played_s, 0.0)
        known = bytes(self.pcm[at : at + len(data)])
        self.num_conflicts += at > len(self.pcm) or known != data[: len(known)]
        self.pcm += data[len(known) :]


@dataclass
class ResyncingListener(Listener):
    """Goes on at another gateway when its own dies."""

    settings: ev.NativeSpeechSettings = msgspec.structs.replace(SETTINGS, checkpoints=True, seed=5)
    checkpoints: list[str] = field(default_factory=list)
    # By ``time.monotonic``, from the lost connection to the next audio.
    back_ms: list[float] = field(default_factory=list)

    async def run(self) -> None:
        self.client = await open_session(self.url)
        await self.client.send(ev.ResponseCreate(response_id="r", settings=self.settings, text=VOICE_TEXT, end=True))
        await self._listen(self.client, "", 600.0)

    async def _listen(self, client: NativeClient, token: str, duration_s: float) -> str:
        while True:
            async for event in client:
                self._on_event(event, token)
                if self.status:
                    await client.aclose()
                    return token
            lost_s, num_bytes = time.monotonic(), len(self.pcm)
            client = self.client = await self._reconnect()
            opened_s = time.monotonic()
            position = ev.Resync(checkpoints=tuple(self.checkpoints), received_samples=num_bytes // 2)
            await client.send(
                ev.ResponseCreate(response_id="r", settings=self.settings, text=VOICE_TEXT, end=True, resync=position)
            )
            async for event in client:
                self._on_event(event, token)
                if isinstance(event, ev.ResponseCreated):
                    self.resumed_ms.append(1000 * (time.monotonic() - opened_s))
                if len(self.pcm) > num_bytes or self.status:
                    break
            self.audio_ms.append(1000 * (time.monotonic() - opened_s))
            self.back_ms.append(1000 * (time.monotonic() - lost_s))

    async def _reconnect(self) -> NativeClient:
        while True:
            with contextlib.suppress(OSError, WebSocketException):
                return await open_session(self.url)
            await asyncio.sleep(0.02)

    def _on_event(self, event: ev.ServerEvent | ev.AudioMessage, token: str) -> str:
        if isinstance(event, ev.ResponseCheckpoint):
            self.checkpoints[event.index :] = [event.data]
        return super()._on_event(event, token)

    def difference_db(self, uncut: Listener) -> float:
        if len(self.pcm) != len(uncut.pcm):
            return float("inf")
        mine, other = (np.frombuffer(bytes(one.pcm), np.int16).astype(np.float64) for one in (self, uncut))
        return round(float(10 * np.log10(((mine - other) ** 2).mean() / (other**2).mean() + 1e-12)), 1)


async def kill_gateway(url: str, supervisor: psutil.Process, num_sessions: int, after_s: float) -> dict[str, object]:
    def listener() -> ResyncingListener:
        return ResyncingListener(url, random.Random(1), 0)

    uncut = listener()
    uncut.settings = msgspec.structs.replace(uncut.settings, pace="burst", lead_ms=None)
    await uncut.run()
    listeners = [listener() for _ in range(num_sessions)]
    tasks = [asyncio.create_task(one.run()) for one in listeners]
    await asyncio.sleep(after_s)
    ours = listeners[0].client._socket.local_address
    gateways = [child for child in supervisor.children() if "realtime.gateway" in child.cmdline()]
    owner = next(one for one in gateways if any(at.raddr == ours for at in one.net_connections("tcp")))
    os.kill(owner.pid, signal.SIGKILL)
    await asyncio.gather(*tasks)
    cut = [one for one in listeners if one.back_ms]
    others = [one for one in listeners if not one.back_ms]
    return {
        "completed": sum(one.status == "completed" for one in listeners),
        "codes": sorted({one.status for one in listeners} - {"completed"}),
        "created_ms": percentiles([ms for one in cut for ms in one.resumed_ms]),
        "audio_ms": percentiles([ms for one in cut for ms in one.audio_ms]),
        "back_ms": percentiles([ms for one in cut for ms in one.back_ms]),
        "silence_ms": [round(1000 * one.silence_s, 1) for one in cut],
        "difference_db": [one.difference_db(uncut) for one in cut],
        "conflicts": sum(one.num_conflicts for one in listeners),
        "others": {"sessions": len(others), "silence_ms": [round(1000 * one.silence_s, 1) for one in others]},
        "checkpoint_bytes_per_s": round(sum(map(len, cut[0].checkpoints)) * RATE / (len(cut[0].pcm) / 2)),
    }


def measure_kill(num_sessions: int, after_s: float) -> dict[str, object]:
    command = [sys.executable, "-m", "realtime.cli", "serve", "--port", "0", "--gateways", "2"]
    load = round(os.getloadavg()[0], 1)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        url = wire_address(process.stdout).removesuffix("/v1/speech")
        found = asyncio.run(kill_gateway(url, psutil.Process(process.pid), num_sessions, after_s))
        process.terminate()
    return {"benchmark": "resume", "mode": "kill", "load": load, "sessions": num_sessions, "after_s": after_s} | found


async def measure(
    url: str, num_sessions: int, num_cuts: int, interval_s: tuple[float, float], num_rounds: int
) -> list[Listener]:
    rng = random.Random(1)
    rounds = [
        [Listener(url, random.Random(rng.random()), num_cuts, interval_s) for _ in range(num_sessions)]
        for _ in range(num_rounds)
    ]
    for listeners in rounds:
        await asyncio.gather(*(listener.run() for listener in listeners))
    return [listener for listeners in rounds for listener in listeners]


def percentiles(values: list[float]) -> dict[str, float]:
    return {f"p{q:g}": round(float(np.percentile(values, q)), 1) for q in (50, 99, 99.9)} if values else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int)
    parser.add_argument("--cuts", type=int, default=4)
    parser.add_argument("--interval", default="1,5", help="shortest and longest time between two cuts, in seconds")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--grace", type=float, default=30.0)
    parser.add_argument("--kill", action="store_true", help="kill a gateway of a server with the embedded voice")
    parser.add_argument("--after", type=float, default=4.0, help="seconds of speech before the gateway is killed")
    args = parser.parse_args()
    if args.kill:
        print(json.dumps(measure_kill(args.sessions or 4, args.after)))
        return
    num_sessions = args.sessions or 50
    shortest_s, longest_s = map(float, args.interval.split(","))
    load = os.getloadavg()[0]
    with server(SCRIPT, log__level="error", limits__resume_grace_s=args.grace) as running:
        work = measure(running.url, num_sessions, args.cuts, (shortest_s, longest_s), args.rounds)
        listeners = asyncio.run(work)
    lengths = {len(listener.pcm) for listener in listeners}
    report = {
        "benchmark": "resume",
        "load": round(load, 1),
        "sessions": num_sessions * args.rounds,
        "cuts": sum(len(listener.resumed_ms) for listener in listeners),
        "completed": sum(listener.status == "completed" for listener in listeners),
        "resumed_ms": percentiles([ms for listener in listeners for ms in listener.resumed_ms]),
        "audio_ms": percentiles([ms for listener in listeners for ms in listener.audio_ms]),
        "later_than_300_ms": sum(ms > 300 for listener in listeners for ms in listener.audio_ms),
        "max_silence_ms": round(1000 * max(listener.silence_s for listener in listeners), 1),
        "conflicts": sum(listener.num_conflicts for listener in listeners),
        "different_lengths": len(lengths) - 1,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
