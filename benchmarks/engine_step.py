"""Measure milliseconds of one engine step, by stage, at several batch sizes.

A step generates one codec frame (80 ms of audio) for every running row. Milliseconds per step over 80 are therefore the
real-time factor of every stream. Rows run in burst with the end of speech banned; the prompt is prefilled before the
clock starts. ``--compare`` alternates the optimized CPU layers with plain torch and prints the ratio.

    python -m benchmarks.engine_step [--model FOLDER] [--batch 1,4,12] [--frames 40] [--compare]

The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from torch.profiler import ProfilerActivity, profile

from engine.api import SamplingParams, SpeechRequest
from engine.config import EngineConfig
from engine.launch import EMBEDDED_VOICE
from engine.load import choose_device, choose_dtype, load_engine
from engine.runtime.engine import Engine

TEXT = "The quick brown fox jumps over the lazy dog, and then it does the same thing all over again. " * 3
MAX_FRAMES = 3000


def make_engine(folder: Path, args: argparse.Namespace, cpu_optimizations: bool, batch: int) -> Engine:
    config = EngineConfig(
        max_batch_size=batch,
        max_running_requests=batch * 4 // 3,  # burst requests hold three quarters of the slots
        cpu_optimizations=cpu_optimizations,
        loop_limit_frames=MAX_FRAMES,
        silence_limit_s=1e6,
        kv_memory_mb=args.kv_memory_mb,
    )
    make = load_engine(folder, config, args.device, args.dtype, is_embedded=False).make_engine
    if args.threads:
        torch.set_num_threads(args.threads)
    return make()


def fill(engine: Engine, batch: int) -> None:
    """Prefill ``batch`` rows."""
    for epoch in range(batch):
        sampling = SamplingParams(seed=epoch, min_new_tokens=1000)
        spec = SpeechRequest(
            request_id=str(epoch), text=TEXT, text_closed=True, sampling=sampling, max_frames=MAX_FRAMES
        )
        engine.requests.submit(spec, epoch)
    with engine.computing():
        while any(request.num_frames < 4 for request in engine.requests.active.values()):
            engine.run_step()
    engine.requests.events.clear()


def measure(engine: Engine, num_frames: int) -> dict[str, float]:
    """Mean over ``num_frames`` steps, because a median would hide the decode rounds that collect frames."""
    engine.times.reset()
    with engine.computing():
        cpu_s = time.thread_time()
        for _ in range(num_frames):
            engine.run_step()
        cpu_s = time.thread_time() - cpu_s
    engine.requests.events.clear()
    times = engine.times
    scale = 1000 / times.num_steps
    return {
        "step_ms": times.total_s * scale,
        "cpu_ms": cpu_s * scale,
        "talker_ms": times.talker_s * scale,
        "predictor_ms": times.predictor_s * scale,
        "decode_ms": times.decode_s * scale,
        "host_ms": times.host_s * scale,
    }


def best_of(engine: Engine, num_frames: int, rounds: int) -> dict[str, float]:
    """Return the fastest round, because other programs can only add time."""
    return min((measure(engine, num_frames) for _ in range(rounds)), key=lambda r: r["cpu_ms"])


def python_share(engine: Engine, num_frames: int) -> float:
    """Share of a step that is not inside any torch operator, by the profiler.

    Includes the profiler's own cost and numpy's sines; native sampling reports less (docs/experiments/cpu-engine.md).
    """
    engine.times.reset()
    with engine.computing(), profile(activities=[ProfilerActivity.CPU]) as seen:
        for _ in range(num_frames):
            engine.run_step()
    engine.requests.events.clear()
    inside_us = float(sum(event.cpu_time_total for event in seen.events() if event.cpu_parent is None))
    return max(0.0, 1.0 - inside_us / 1e6 / engine.times.total_s)


def random_checkpoint(shape: str) -> Path:
    from tests.fakes import checkpoints

    folder = Path(tempfile.mkdtemp(prefix="voicewire-"))
    return checkpoints.write_checkpoint(folder, getattr(checkpoints, shape.upper()))


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    folder = args.model or (random_checkpoint(args.random) if args.random else EMBEDDED_VOICE)
    rows = []
    for batch in args.batch:
        engines = {True: make_engine(folder, args, cpu_optimizations=True, batch=batch)}
        if args.compare:
            engines[False] = make_engine(folder, args, cpu_optimizations=False, batch=batch)
        for engine in engines.values():
            fill(engine, batch)
        results = {fast: best_of(engine, args.frames, args.rounds) for fast, engine in engines.items()}
        row: dict[str, Any] = {"batch": batch, **results[True]}
        row["python_share"] = python_share(engines[True], 10)
        if args.compare:
            row["plain_cpu_ms"] = results[False]["cpu_ms"]
            row["plain_over_fast"] = results[False]["cpu_ms"] / results[True]["cpu_ms"]
        rows.append({key: round(value, 3) for key, value in row.items()})
        print("  ".join(f"{key} {value:g}" for key, value in rows[-1].items()), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="checkpoint folder; default: the embedded voice")
    parser.add_argument("--random", help="a random checkpoint of this shape: embedded, tiny, tiny_projected")
    parser.add_argument(
        "--batch", type=lambda text: [int(part) for part in text.split(",")], default=[1, 2, 4, 8, 12, 32]
    )
    parser.add_argument("--frames", type=int, default=40, help="steps in one round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--kv-memory-mb", type=int, default=512)
    parser.add_argument("--compare", action="store_true", help="alternate with plain torch")
    args = parser.parse_args()
    rows = run(args)
    device = choose_device(args.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu"
    dtype = str(choose_dtype(args.dtype, device)).removeprefix("torch.")
    print(
        json.dumps(
            {"benchmark": "engine_step", "device": name, "dtype": dtype, "torch": torch.__version__, "rows": rows}
        )
    )


if __name__ == "__main__":
    main()
