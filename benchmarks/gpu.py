"""Measure one GPU: step time, concurrent listeners, and TTFA under load, with random weights.

    python -m benchmarks.gpu --part steps  [--shape 1.7b,0.6b] [--batch 1,64]   burst rows: ms per frame, audio-s/s
    python -m benchmarks.gpu --part crowd  [--batch 64,1024]     paced listeners: continuity, TTFA
    python -m benchmarks.gpu --part load   [--rates 1,10,40]     Poisson arrivals, text token by token: TTFA

Every result includes the GPU's utilization. ``--max-batch``: maximum rows of one step; ``--set``: an engine option.

``crowd`` and ``load`` use an engine in a process of its own through ``engine.api``. To measure sockets and Opus, run
``voicewire serve`` and ``voicewire bench`` on the folder that ``--keep`` names. The end of speech is banned and guards
are off, so that all speech has its full length. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

from benchmarks import random_model
from benchmarks.gpu_plot import plot
from benchmarks.gpu_stages import numbers
from benchmarks.gpu_utilization import GpuWatch
from benchmarks.roofline import Roofline
from engine.api import (
    RequestFinished,
    RequestParked,
    SamplingParams,
    SpeechChunk,
    SpeechEngine,
    SpeechRequest,
    TextLayout,
)
from engine.config import EngineConfig
from engine.launch import create_engine
from engine.load import load_engine
from engine.process import freeze_gc
from engine.runtime.engine import Engine

FRAME_S = 0.08
# Maximum frames of a request, because its text has no end.
NO_END = 1_000
EPOCHS = itertools.count()
# Seconds by which burst requests precede the listeners.
BURST_AHEAD_S = 2.0
BURST_SAMPLES: Counter[str] = Counter()
WORDS = "the quick brown fox jumps over the lazy dog and then it does the same thing all over again ".split()
SETTINGS: dict[str, Any] = dict(
    loop_limit_frames=100_000,
    silence_limit_s=1e6,
    max_queued_requests=4096,
    voice_encoders=False,
)


def text_of(num_chars: int) -> str:
    words = WORDS * (num_chars // 40 + 1)
    return " ".join(words)[:num_chars].strip()


def percentile(values: list[float], share: float) -> float:
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))] if ranked else float("nan")


def summary_ms(values_s: list[float]) -> dict[str, float]:
    return {f"p{round(100 * share)}": round(1000 * percentile(values_s, share), 2) for share in (0.5, 0.95, 0.99)}


# -- rows in burst, in this process ------------------------------------------------------------------------------


def fill(engine: Engine, rows: int, text: str, frames: int) -> None:
    """Step until ``rows`` rows are running."""
    for epoch in itertools.islice(EPOCHS, rows - len(engine.requests.active)):
        sampling = SamplingParams(seed=epoch, min_new_tokens=NO_END)
        spec = SpeechRequest(request_id=str(epoch), text=text, text_closed=True, sampling=sampling, max_frames=frames)
        engine.requests.submit(spec, epoch)
    while any(request.num_frames < 2 for request in engine.requests.active.values()):
        engine.step()
        engine.requests.events.clear()


def measure_steps(engine: Engine, num_steps: int) -> dict[str, float]:
    engine.times.reset()
    start = time.perf_counter()
    for _ in range(num_steps):
        engine.step()
        engine.requests.events.clear()
    took_ms = 1000 * (time.perf_counter() - start) / num_steps
    times, scale = engine.times, 1000 / num_steps
    parts = {"launch_ms": times.launch_s, "wait_ms": times.wait_s, "pcm_ms": times.decode_s, "host_ms": times.host_s}
    return {"step_ms": took_ms, **{name: seconds * scale for name, seconds in parts.items()}}


def run_steps(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    rows = max(args.batch)
    start = time.perf_counter()
    config = EngineConfig(**settings_of(args, rows))
    engine = load_engine(folder, config, args.device, "auto", is_embedded=False).make_engine()
    result: dict[str, Any] = {"start_s": round(time.perf_counter() - start, 1), "blocks": engine.pool.num_blocks}
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        result["memory_gb"] = round((total - free) / 1e9, 1)
    found: list[dict[str, Any]] = []
    floor = Roofline.of(args.shape)
    for batch in sorted(args.batch):
        fill(engine, batch, text_of(args.chars), args.max_frames)
        measure_steps(engine, 5)
        with GpuWatch() as watch:
            row = {"batch": batch, **measure_steps(engine, args.steps)}
        row["audio_s_per_s"] = batch * FRAME_S * 1000 / row["step_ms"]
        row["context"] = max(request.row.num_computed for request in engine.requests.active.values())
        row["ratio"] = row["step_ms"] / floor.total_ms(batch, int(row["context"]))
        found.append({name: round(value, 3) for name, value in row.items()} | watch.report())
        print("  ".join(f"{name} {value}" for name, value in found[-1].items()), flush=True)
    return result | {"steps": found}


def settings_of(args: argparse.Namespace, rows: int) -> dict[str, Any]:
    """Engine settings for a number of streams."""
    num_slots = rows * 4 // 3 if args.part == "steps" else rows  # burst requests hold three quarters of the slots
    sizes = dict(graphs=True, max_batch_size=min(rows, args.max_batch or rows), max_running_requests=num_slots)
    return SETTINGS | sizes | dict(args.set, lazy_graph_capture=args.fast_start)


def setting(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    return name, json.loads(value)


# -- listeners at the engine API ---------------------------------------------------------------------------------


@dataclass
class SimulatedListener:
    """One stream at its listener: arrival times, and underruns of the playback."""

    asked_s: float = 0.0
    first_s: float | None = None
    dry_s: float = 0.0
    late_s: float = 0.0
    least_lead_s: float = float("inf")
    num_samples: int = 0
    num_chunks: int = 0
    failed: bool = False
    starved: bool = False
    events: list[Any] = field(default_factory=list)

    def hear(self, chunk: SpeechChunk, rate: int, now: float) -> None:
        if len(chunk.pcm) == 0:
            return
        if self.first_s is None:
            self.first_s = self.dry_s = now
        elif not self.starved:
            self.late_s = max(self.late_s, now - self.dry_s)
            self.least_lead_s = min(self.least_lead_s, self.dry_s - now)
        self.starved = False
        self.dry_s = max(self.dry_s, now) + len(chunk.pcm) / rate
        self.num_samples += len(chunk.pcm)
        self.num_chunks += 1


async def listen(
    engine: SpeechEngine, listener: SimulatedListener, spec: SpeechRequest, pieces: list[str], pace_s: float
) -> None:
    """Receive a stream; ``asked_s`` is when the second word was sent, which completes the first."""
    listener.asked_s = time.perf_counter()
    stream = engine.submit(spec)
    feeding = asyncio.create_task(feed(stream, pieces, pace_s)) if pieces else None
    try:
        async for event in stream:
            if isinstance(event, SpeechChunk):
                listener.hear(event, engine.info.sample_rate, time.perf_counter())
            elif isinstance(event, RequestParked):
                listener.starved = True
            elif isinstance(event, RequestFinished):
                listener.failed = event.error is not None
    finally:
        stream.cancel()
        if feeding is not None:
            feeding.cancel()


async def feed(stream: Any, pieces: list[str], pace_s: float) -> None:
    for piece in pieces:
        await asyncio.sleep(pace_s)
        stream.push_text(piece)
    stream.end_input()


def report(listeners: list[SimulatedListener], took_s: float) -> dict[str, Any]:
    heard = [one for one in listeners if one.first_s is not None and not one.failed]
    first_s = [one.first_s - one.asked_s for one in heard if one.first_s is not None]
    leads = [one.least_lead_s for one in heard]
    gaps = [one for one in heard if one.late_s > 0.001]
    return {
        "streams": len(listeners),
        "failed": len(listeners) - len(heard),
        "ttfa_ms": summary_ms(first_s),
        "continuity": round(1 - len(gaps) / max(1, len(heard)), 4),
        "worst_gap_ms": round(1000 * max((one.late_s for one in heard), default=0.0), 1),
        "least_lead_ms": {f"p{share}": round(1000 * percentile(leads, share / 100)) for share in (0, 1, 5)},
        "audio_s_per_s": round(sum(one.num_samples for one in heard) / 24_000 / took_s, 1),
        "chunks_per_s": round(sum(one.num_chunks for one in heard) / took_s),
    }


async def run_concurrency(args: argparse.Namespace, engine: SpeechEngine, size: int) -> dict[str, Any]:
    """Run ``size`` listeners with ``--seconds`` of speech each, beside ``--burst`` burst requests.

    The listeners arrive within ``--ramp`` seconds.
    """
    listeners, tasks = [SimulatedListener() for _ in range(size)], []
    bulk = [asyncio.create_task(keep_bursting(args, engine, number)) for number in range(args.burst)]
    await asyncio.sleep(BURST_AHEAD_S if bulk else 0.0)
    BURST_SAMPLES.clear()
    start = time.perf_counter()
    for number, listener in enumerate(listeners):
        await asyncio.sleep(max(0.0, start + args.ramp * number / size - time.perf_counter()))
        spec = SpeechRequest(
            request_id=f"c{number}",
            text=text_of(args.chars),
            text_closed=True,
            layout=TextLayout.STREAMING,
            sampling=SamplingParams(seed=number, min_new_tokens=NO_END),
            max_frames=int(args.seconds / FRAME_S),
            lead_ms=args.lead_ms,
        )
        tasks.append(asyncio.create_task(listen(engine, listener, spec, [], 0.0)))
    await asyncio.gather(*tasks)
    found = report(listeners, time.perf_counter() - start)
    for task in bulk:
        task.cancel()
    results = await asyncio.gather(*bulk, return_exceptions=True)
    found["burst"] = args.burst
    found["burst_errors"] = [str(one) for one in results if isinstance(one, Exception)][:3]
    found["burst_audio_s_per_s"] = round(BURST_SAMPLES["heard"] / 24_000 / (time.perf_counter() - start), 1)
    return found


async def keep_bursting(args: argparse.Namespace, engine: SpeechEngine, number: int) -> None:
    """Submit burst requests one after the other."""
    for serial in itertools.count():
        spec = SpeechRequest(
            request_id=f"b{number}.{serial}",
            text=text_of(args.chars),
            text_closed=True,
            sampling=SamplingParams(seed=number, min_new_tokens=NO_END),
            max_frames=100 + number % 100,
            group=f"bulk{number % 4}",
        )
        stream = engine.submit(spec)
        try:
            async for event in stream:
                if isinstance(event, SpeechChunk):
                    BURST_SAMPLES["heard"] += len(event.pcm)
                elif isinstance(event, RequestFinished) and event.error:
                    raise RuntimeError(f"{event.error.code}: {event.error.message}")
        finally:
            stream.cancel()


async def run_arrivals(args: argparse.Namespace, engine: SpeechEngine, rate: float) -> dict[str, Any]:
    """Run Poisson arrivals at ``rate`` per second; texts of 30 to 400 characters, a token every 20 ms."""
    chance = random.Random(1)
    listeners: list[SimulatedListener] = []
    tasks = []
    start = time.perf_counter()
    while time.perf_counter() - start < args.seconds:
        await asyncio.sleep(chance.expovariate(rate))
        text = text_of(chance.randint(30, 400))
        head, rest = text[:12], text[12:]
        pieces = [rest[i : i + 4] for i in range(0, len(rest), 4)]
        spec = SpeechRequest(
            request_id=f"l{len(listeners)}",
            text=head,
            sampling=SamplingParams(seed=len(listeners), min_new_tokens=NO_END),
            max_frames=max(12, len(text)),
            lead_ms=args.lead_ms,
        )
        listeners.append(SimulatedListener())
        tasks.append(asyncio.create_task(listen(engine, listeners[-1], spec, pieces, 0.02)))
    _, speaking = await asyncio.wait(tasks, timeout=args.linger)
    for task in speaking:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()
    return report(listeners, time.perf_counter() - start) | {"rate": rate}


async def run_engine_only(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    rows = max(args.batch)
    engine = create_engine(folder, device=args.device, process=not args.thread, **settings_of(args, rows))
    start = time.perf_counter()
    await engine.start()
    result: dict[str, Any] = {"start_s": round(time.perf_counter() - start, 1), args.part: []}
    print(json.dumps(result), flush=True)
    freeze_gc()
    try:
        for size in args.batch if args.part == "crowd" else args.rates:
            run = run_concurrency if args.part == "crowd" else run_arrivals
            before = resource.getrusage(resource.RUSAGE_SELF)
            with GpuWatch() as watch:
                found = await run(args, engine, size)
            after = resource.getrusage(resource.RUSAGE_SELF)
            found["client_cpu_s"] = round(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, 1)
            found |= watch.report()
            result[args.part].append(found)
            print(json.dumps(found), flush=True)
    finally:
        await engine.aclose()
    return result


def run_alone(shape: str) -> Any:
    """Run this command for one shape in a process, and return the JSON of its last line."""
    command = [sys.executable, "-m", "benchmarks.gpu", *sys.argv[1:], "--shape", shape]
    line = ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            print(line, end="", flush=True)
    if running.returncode:
        raise SystemExit(running.returncode)
    return json.loads(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="steps", choices=["steps", "crowd", "load"])
    parser.add_argument("--shape", default="1.7b", help=f"of {', '.join(random_model.SHAPES)}; several in a row")
    parser.add_argument("--batch", type=numbers, default=[1, 8, 64, 256, 512, 1024, 1536])
    parser.add_argument("--rates", type=numbers, default=[1, 10, 20, 40])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--chars", type=int, default=400, help="characters of a text (steps, crowd)")
    parser.add_argument("--max-frames", type=int, default=990)
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds of speech (crowd) or of arrivals (load)")
    parser.add_argument("--linger", type=float, help="seconds from the last arrival to the end (load)")
    parser.add_argument("--ramp", type=float, default=4.0, help="seconds in which listeners arrive (crowd)")
    parser.add_argument("--burst", type=int, default=0, help="burst requests beside the listeners (crowd)")
    parser.add_argument("--lead-ms", type=int, default=2000)
    parser.add_argument("--max-batch", type=int, help="maximum rows of one step (default: number of streams)")
    parser.add_argument("--set", type=setting, action="append", default=[], metavar="NAME=JSON")
    parser.add_argument("--fast-start", action="store_true")
    parser.add_argument("--thread", action="store_true", help="run the engine in a thread of this process")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--plot", type=Path, help="SVG of TTFA and continuity against load (crowd, load)")
    parser.add_argument("--keep", type=Path, help="folder of the checkpoint, written if missing")
    args = parser.parse_args()
    shapes = args.shape.split(",")
    if unknown := set(shapes) - set(random_model.SHAPES):
        parser.error(f"unknown shape {unknown.pop()!r}")
    if len(shapes) > 1:
        print(json.dumps({"benchmark": "gpu", "part": args.part, "runs": [run_alone(shape) for shape in shapes]}))
        return
    with tempfile.TemporaryDirectory() as room:
        folder = args.keep or Path(room)
        if not (folder / "model.safetensors").exists():
            random_model.write(folder, args.shape, torch.device(args.device))
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        result = run_steps(args, folder) if args.part == "steps" else asyncio.run(run_engine_only(args, folder))
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    if args.plot:
        load_name = "streams" if args.part == "crowd" else "rate"
        steps = f", steps of {args.max_batch} rows at most" if args.max_batch else ""
        title = f"{args.shape}, {name}{steps}: {args.part}"
        args.plot.write_text(plot(result[args.part], load_name, title), encoding="utf-8")
    print(json.dumps({"benchmark": "gpu", "part": args.part, "shape": args.shape, "device": name, **result}))


if __name__ == "__main__":
    main()
