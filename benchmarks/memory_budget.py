"""Start engines within a memory budget and speak with as many rows: what they hold, and what they refuse.

    python -m benchmarks.memory_budget [--shape 1.7b] [--gb 4,6,8,16] [--precision bf16,int4] [--rows 8] [--frames 100]

Random weights of the released shape (``cosyvoice3`` is one, too), written to a folder and loaded as any checkpoint, one
process for each engine. ``running`` is the most replies that ran at once; the others waited for slots or pages.
``used`` is what the device has less than before, CUDA context included: nothing else may use it. On the CPU budgets are
refused. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks import random_model
from engine.api import FinishReason, RequestFinished, SamplingParams, SpeechChunk, SpeechRequest
from engine.config import EngineConfig
from engine.errors import SpeechError
from engine.load import load_engine
from engine.models.cosyvoice3.config import CosyVoice3Config
from engine.models.cosyvoice3.decode_stage import CosyDecodeStage
from engine.runtime.engine import Engine
from tests.fakes.cosyvoice3_checkpoint import write_cosyvoice3

GB = 2**30
COSYVOICE3 = "cosyvoice3"
# Replies are paced, for which all slots are open; none waits for its listener.
LEAD_MS = 600_000
TEXT = "It is late, and the rain is cold. "


def run_engine(folder: Path, device: str, gb: float, precision: str, rows: int, num_frames: int) -> dict[str, Any]:
    """Start one engine and speak ``num_frames`` in each of ``rows`` rows; or the refusal."""
    found: dict[str, Any] = {"gb": gb, "precision": precision, "rows": rows}
    config = EngineConfig(memory_gb=gb, precision=precision, max_batch_size=rows, max_running_requests=rows)
    start = time.perf_counter()
    try:
        loaded = load_engine(folder, config, device, "auto", is_embedded=False)
        found["weights"] = round(torch.cuda.memory_allocated() / GB, 2)
        found["load_peak"] = round(torch.cuda.max_memory_reserved() / GB, 2)
        engine = loaded.make_engine()
    except SpeechError as error:
        return found | {"refused": str(error)}
    found["start_s"] = round(time.perf_counter() - start, 1)
    cache = engine.kv.data.nbytes
    found |= {"cache": round(cache / GB, 2), "positions": engine.pool.num_blocks * config.block_size}
    if isinstance(engine.stage, CosyDecodeStage):
        found["pages"] = engine.stage.memory.pool.num_blocks
    found |= speak(engine, rows, num_frames)
    free, total = torch.cuda.mem_get_info()
    reserved = torch.cuda.max_memory_reserved()
    found |= {"reserved": round(reserved / GB, 2), "used": round((total - free) / GB, 2)}
    return found | {"outside": round((total - free - torch.cuda.memory_reserved()) / GB, 2)}


def speak(engine: Engine, rows: int, num_frames: int) -> dict[str, Any]:
    """Speak ``rows`` replies; how many ran at once, how they ended, and milliseconds of a frame of all."""
    for number in range(rows):
        sampling = SamplingParams(seed=number, min_new_tokens=num_frames)
        spec = SpeechRequest(
            request_id=str(number),
            text=TEXT * 8,
            text_closed=True,
            max_frames=num_frames,
            sampling=sampling,
            lead_ms=LEAD_MS,
        )
        engine.requests.submit(spec, number)
    num_running = 0
    start = time.perf_counter()
    while engine.has_work:
        engine.step()
        num_running = max(num_running, engine.stats().num_running)
    seconds = time.perf_counter() - start
    events = [event for _, event in engine.requests.events]
    ends = [event.reason for event in events if isinstance(event, RequestFinished)]
    samples = sum(len(event.pcm) for event in events if isinstance(event, SpeechChunk))
    return {
        "running": num_running,
        "whole": sum(reason == FinishReason.LENGTH for reason in ends),
        "speech_s": round(samples / 24_000, 1),
        "frame_ms": round(1000 * seconds / num_frames, 2),
        "preemptions": engine.stats().num_preemptions,
    }


def write_checkpoint(folder: Path, shape: str, device: str) -> Path:
    if shape == COSYVOICE3:
        return write_cosyvoice3(folder, CosyVoice3Config())
    return random_model.write(folder, shape, torch.device(device))


def numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="1.7b", choices=[*random_model.SHAPES, COSYVOICE3])
    parser.add_argument("--gb", type=numbers, default=[4.0, 6.0, 8.0, 16.0])
    parser.add_argument("--precision", type=lambda text: text.split(","), default=["bf16", "int4"])
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--frames", type=int, default=100)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, context) as pool:
            folder = pool.submit(write_checkpoint, Path(scratch), args.shape, args.device).result()
        for precision, gb in product(args.precision, args.gb):
            with ProcessPoolExecutor(1, context) as pool:
                job = pool.submit(run_engine, folder, args.device, gb, precision, args.rows, args.frames)
                found.append(job.result())
            print(json.dumps(found[-1]), flush=True)
    print(json.dumps({"benchmark": "memory_budget", "shape": args.shape, "rows": found}))


if __name__ == "__main__":
    main()
