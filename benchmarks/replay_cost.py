"""Measure what a replay of a request costs, beside a takeover that goes on without its first audio.

    python -m benchmarks.replay_cost [--requests 8] [--after 4] [--rounds 5]

The embedded voice in a process of its own. Each request is stopped after some seconds of speech and submitted again
with its codes: as a replay (all its audio is made again, for the gateway of a client that comes with checkpoints), and
as a takeover (its next audio is made). Reported are milliseconds to the first new audio and CPU milliseconds of the
engine until all requests have it: minimum, median and maximum. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import NamedTuple

import msgspec
import numpy as np
import psutil

from engine.api import ResumePoint, SamplingParams, SpeechChunk, SpeechEngine, SpeechRequest
from engine.launch import create_engine
from engine.streams import EngineStream

TEXT = "One two three four five. Six seven eight nine ten, eleven twelve? Thirteen fourteen fifteen sixteen. "


class StoppedRequest(NamedTuple):
    request: SpeechRequest
    codes: bytes
    num_samples: int

    def resumed(self, is_replay: bool) -> SpeechRequest:
        point = ResumePoint(codes=self.codes, num_samples=0 if is_replay else self.num_samples)
        return msgspec.structs.replace(self.request, resume=point)


async def read_until(stream: EngineStream, num_samples: int) -> tuple[bytes, int]:
    """Return codes and end of the audio once there are more samples; the request is cancelled."""
    codes, end = b"", 0
    async for event in stream:
        if isinstance(event, SpeechChunk):
            codes, end = codes + event.codes, event.start_sample + len(event.pcm)
            if end > num_samples:
                break
    stream.cancel()
    await stream.released()
    return codes, end


async def stop_after(engine: SpeechEngine, number: int, after_s: float) -> StoppedRequest:
    sampling = SamplingParams(seed=5 + number)
    request = SpeechRequest(request_id=f"r{number}", text=TEXT, text_closed=True, sampling=sampling)
    stream = engine.submit(request)
    assert isinstance(stream, EngineStream)
    return StoppedRequest(request, *await read_until(stream, round(after_s * engine.info.sample_rate)))


async def resume(engine: SpeechEngine, stopped: StoppedRequest, is_replay: bool) -> float:
    """Return the milliseconds to the first new audio."""
    began_s = time.monotonic()
    stream = engine.submit(stopped.resumed(is_replay))
    assert isinstance(stream, EngineStream)
    await read_until(stream, stopped.num_samples)
    return 1000 * (time.monotonic() - began_s)


def cpu_ms() -> float:
    [process] = [one for one in psutil.Process().children() if "engine.host" in one.cmdline()]
    times = process.cpu_times()
    return 1000 * (times.user + times.system)


async def measure(num_requests: int, after_s: float, num_rounds: int) -> dict[str, object]:
    engine = create_engine(process=True)
    await engine.start()
    stopped = await asyncio.gather(*(stop_after(engine, number, after_s) for number in range(num_requests)))
    found: dict[str, list[float]] = {}
    for _ in range(num_rounds):
        for name in ("takeover", "replay"):
            before = cpu_ms()
            audio_ms = await asyncio.gather(*(resume(engine, one, name == "replay") for one in stopped))
            found.setdefault(f"{name}_audio_ms", []).extend(audio_ms)
            found.setdefault(f"{name}_cpu_ms", []).append(cpu_ms() - before)
    await engine.aclose()
    return {name: [round(float(np.percentile(values, q)), 1) for q in (0, 50, 100)] for name, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--after", type=float, default=4.0, help="seconds of speech before a request is stopped")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print(json.dumps({"benchmark": "replay_cost"} | asyncio.run(measure(args.requests, args.after, args.rounds))))


if __name__ == "__main__":
    main()
