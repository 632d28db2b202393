"""Measure how fast sessions resume after their connections are lost, and what listeners miss.

    python -m benchmarks.resume [--format opus] [--voice embedded] [--sessions 50] [--cuts 4] [--interval 1,5]
    python -m benchmarks.resume --resync [--format opus] [--sessions 2] [--cuts 8] [--interval 0.5,1.5] [--rounds 4]
    python -m benchmarks.resume --kill [--sessions 4] [--after 4]

The server is a process of its own with the fake engine, or with the embedded voice. Replies have a lead of 2 s: PCM at
16 kHz, or Opus. Each client resets its connection at random moments, after as many seconds as ``--interval`` says, and
resumes on another. Reported are the milliseconds from the opened connection to ``session.resumed`` and to the first new
audio, silence by the client's clock, and samples or packets that were lost or repeated with other content. The last
line is JSON.

Opus of the fake engine is compared with an uncut reply, packet by packet. ``new_decoder_db`` is the difference of a
decoder that starts anew with each connection from one that is kept.

With ``--resync`` the embedded voice speaks, and clients go on as if their gateway had died: by ``resync``, so that
another encoder speaks. Its Opus is judged by the seams and by the words that a recognizer finds; 1 is the ratio of a
place like any other.

With ``--kill`` the server has two gateways and the embedded voice. The gateway of the first client gets SIGKILL, and
its replies go on at the other one by ``resync``. Replies are compared with an uninterrupted one, in dB. ``others`` are
the clients of the gateway that lives.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec
import numpy as np
import psutil

from benchmarks.resume.listener import FORMATS, Listener, ResyncingListener, difference_db
from benchmarks.resume.opus_joints import judge_seams, judge_words, new_decoder_errors_db
from benchmarks.resume.received import ReceivedOpus
from realtime.protocol import events as ev
from tests.realtime.server_process import server, wire_address

TEXT = "One two three four five six seven eight nine ten. " * 12
VOICE_TEXT = "One two three four five. Six seven eight nine ten, eleven twelve? Thirteen fourteen fifteen sixteen. " * 2
SCRIPT = {"ms_per_char": 40.0, "first_chunk_s": 0.02, "real_time_factor": 0.1}


def settings_of(name: str) -> ev.NativeSpeechSettings:
    return ev.NativeSpeechSettings(format=FORMATS[name], lead_ms=2_000, seed=5)


@contextmanager
def voice_server(num_gateways: int, grace_s: float = 30.0) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A server with the embedded voice, and its address."""
    command = [sys.executable, "-m", "realtime.cli", "serve", "--port", "0", "--gateways", str(num_gateways)]
    command += ["--set", f"limits.resume_grace_s={grace_s}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            yield process, wire_address(process.stdout).removesuffix("/v1/speech")
        finally:
            process.terminate()


@contextmanager
def fake_server(grace_s: float) -> Iterator[str]:
    with server(SCRIPT, log__level="error", limits__resume_grace_s=grace_s) as running:
        yield running.url


async def kill_gateway(url: str, supervisor: psutil.Process, args: argparse.Namespace) -> dict[str, object]:
    def listener() -> ResyncingListener:
        return ResyncingListener(url, random.Random(1), VOICE_TEXT, settings_of("pcm"))

    uncut = listener()
    uncut.settings = msgspec.structs.replace(uncut.settings, pace="burst", lead_ms=None)
    await uncut.run()
    listeners = [listener() for _ in range(args.sessions)]
    tasks = [asyncio.create_task(one.run()) for one in listeners]
    await asyncio.sleep(args.after)
    ours = listeners[0].client._socket.local_address
    gateways = [child for child in supervisor.children() if "realtime.gateway" in child.cmdline()]
    owner = next(one for one in gateways if any(at.raddr == ours for at in one.net_connections("tcp")))
    os.kill(owner.pid, signal.SIGKILL)
    await asyncio.gather(*tasks)
    cut = [one for one in listeners if one.back_ms]
    others = [one for one in listeners if not one.back_ms]
    return latencies(listeners) | {
        "back_ms": percentiles([ms for one in cut for ms in one.back_ms]),
        "silence_ms": [round(1000 * one.silence_s, 1) for one in cut],
        "difference_db": [difference_db(one, uncut) for one in cut],
        "others": {"sessions": len(others), "silence_ms": [round(1000 * one.silence_s, 1) for one in others]},
        "checkpoint_bytes_per_s": round(
            sum(map(len, cut[0].checkpoints)) * cut[0].audio.rate / cut[0].audio.num_samples
        ),
    }


async def run_rounds(create: Callable[[random.Random], Listener], args: argparse.Namespace) -> list[Listener]:
    rng = random.Random(1)
    rounds = [[create(random.Random(rng.random())) for _ in range(args.sessions)] for _ in range(args.rounds)]
    for listeners in rounds:
        await asyncio.gather(*(listener.run() for listener in listeners))
    return [listener for listeners in rounds for listener in listeners]


async def cut_connections(url: str, args: argparse.Namespace) -> dict[str, object]:
    """Cut all replies at random moments; compare Opus with an uncut reply."""
    kind = ResyncingListener if args.resync else Listener
    text = TEXT if args.voice == "fake" else VOICE_TEXT
    shortest_s, longest_s = map(float, args.interval.split(","))
    settings = settings_of(args.format)

    def create(rng: random.Random, num_cuts: int = args.cuts) -> Listener:
        return kind(url, rng, text, settings, num_cuts, (shortest_s, longest_s))

    whole = create(random.Random(), num_cuts=0)
    await whole.run()
    listeners = await run_rounds(create, args)
    found = latencies(listeners)
    if isinstance(whole.audio, ReceivedOpus):
        completed = [one.audio for one in listeners if one.status == "completed"]
        audios = [audio for audio in completed if isinstance(audio, ReceivedOpus)]
        found |= judge_opus(audios, whole.audio, text, args)
    return found


def judge_opus(
    audios: Sequence[ReceivedOpus], whole: ReceivedOpus, text: str, args: argparse.Namespace
) -> dict[str, object]:
    if args.resync:
        return {"seams": judge_seams(audios, whole), "words": judge_words(audios, whole, text)}
    errors_db = [error for audio in audios for error in new_decoder_errors_db(audio)]
    found: dict[str, object] = {"new_decoder_db": percentiles(errors_db, (50, 99, 100))}
    if args.voice == "fake":  # the embedded voice rounds, with other replies in a batch
        found["replies_that_differ"] = sum(audio.packets != whole.packets for audio in audios)
    return found


def latencies(listeners: Sequence[Listener]) -> dict[str, object]:
    audio_ms = [ms for listener in listeners for ms in listener.audio_ms]
    return {
        "cuts": len(audio_ms),
        "completed": sum(listener.status == "completed" for listener in listeners),
        "codes": sorted({listener.status for listener in listeners} - {"completed"}),
        "resumed_ms": percentiles([ms for listener in listeners for ms in listener.resumed_ms]),
        "audio_ms": percentiles(audio_ms),
        "later_than_300_ms": sum(ms > 300 for ms in audio_ms),
        "max_silence_ms": round(1000 * max(listener.silence_s for listener in listeners), 1),
        "conflicts": sum(listener.num_conflicts for listener in listeners),
        "different_lengths": len({listener.audio.num_samples for listener in listeners}) - 1,
    }


def percentiles(values: Sequence[float], wanted: Sequence[float] = (50, 99, 99.9)) -> dict[str, float]:
    return {f"p{q:g}": round(float(np.percentile(values, q)), 1) for q in wanted} if values else {}


def measure(args: argparse.Namespace) -> dict[str, object]:
    if args.kill:
        with voice_server(2) as (process, url):
            return asyncio.run(kill_gateway(url, psutil.Process(process.pid), args))
    if args.voice == "embedded":
        with voice_server(1, args.grace) as (_, url):
            return asyncio.run(cut_connections(url, args))
    with fake_server(args.grace) as url:
        return asyncio.run(cut_connections(url, args))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", choices=FORMATS, default="pcm")
    parser.add_argument("--voice", choices=("fake", "embedded"), default="fake")
    parser.add_argument("--sessions", type=int, help="at a time (default: 50; with --kill or --resync 4)")
    parser.add_argument("--cuts", type=int, default=4)
    parser.add_argument("--interval", default="1,5", help="shortest and longest time between two cuts, in seconds")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--grace", type=float, default=30.0)
    parser.add_argument("--resync", action="store_true", help="go on as if the gateway had died")
    parser.add_argument("--kill", action="store_true", help="kill a gateway of a server with the embedded voice")
    parser.add_argument("--after", type=float, default=4.0, help="seconds of speech before the gateway is killed")
    args = parser.parse_args()
    if args.kill or args.resync:
        args.voice = "embedded"
    args.sessions = args.sessions or (4 if args.voice == "embedded" else 50)
    setup = {name: getattr(args, name) for name in ("format", "voice", "sessions", "rounds", "resync", "kill")}
    load = round(os.getloadavg()[0], 1)
    print(json.dumps({"benchmark": "resume", "load": load} | setup | measure(args)))


if __name__ == "__main__":
    main()
