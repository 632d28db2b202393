"""Measure the time that Python adds to a step of the pipelined engine, without a device.

The computations are omitted. Rows have the smallest shape with the released counts of codes and samples; every step
samples and decodes constant values. Runs on any machine. Reports CPU time of the thread per step, and wall time of the
parts.

    python -m benchmarks.host_overhead [--batch 64,1024] [--steps 60] [--paced] [--profile]

``--paced``: listeners with a lead of 2 s, on a clock on which a step takes ``--step-ms``; else rows run in burst. The
last line is JSON.
"""

from __future__ import annotations

import argparse
import cProfile
import itertools
import json
import os
import pstats
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

from benchmarks import random_model
from benchmarks.gpu_stages import numbers
from engine.api import SamplingParams, SpeechRequest, TextLayout
from engine.config import EngineConfig
from engine.ipc import pack_events
from engine.load import load_engine
from engine.process import freeze_gc
from engine.runtime.engine import Engine
from tests.fakes import checkpoints

NO_END = 1_000
SMALL: dict[str, Any] = checkpoints.TINY | {"books": 16, "codes": 64}
BLOCK = 16


def make_engine(folder: Path, rows: int, **settings: Any) -> Engine:
    usual: dict[str, Any] = dict(
        graphs=True, max_batch_size=rows, max_running_requests=rows * 4 // 3, num_blocks=rows * 64, block_size=BLOCK,
        loop_limit_frames=100_000, silence_limit_s=1e6, lazy_graph_capture=True,
        voice_encoders=False, admission_utilization=1e3,
    )  # fmt: skip
    config = EngineConfig(**(usual | settings))
    engine = load_engine(folder, config, "cpu", "float32", is_embedded=False).make_engine()
    assert isinstance(engine, Engine)
    stub_device(engine)
    freeze_gc()
    return engine


@torch.inference_mode()
def stub_device(engine: Engine) -> None:
    program, decoder = engine.runner.program, engine.stage.codec.program
    codes = program.outputs.host["codes"]
    sets = torch.randint(0, 64, (64, *codes.shape)).numpy()
    sets[..., -1] = 1
    turn = itertools.cycle(sets)
    decoder.pcm.normal_(0, 0.1)
    decoder.finite.fill_(True)

    def draw(rows: int, follows_prefill: int = 0) -> None:
        codes[:rows] = next(turn)[:rows]

    engine.runner.frames._run = draw
    for graphs in (engine.runner.prefills, engine.stage.codec.graphs):
        graphs._run = lambda *key: None


class Bench:
    def __init__(self, engine: Engine, args: argparse.Namespace) -> None:
        self.engine, self.args = engine, args
        self.now_s, self.epochs, self.sent_s, self.num_bytes = 100.0, itertools.count(1), 0.0, 0
        if args.paced:
            engine.requests.clock = lambda: self.now_s

    def step(self) -> None:
        self.engine.step()
        self.now_s += self.args.step_ms / 1000
        start = time.perf_counter()
        events, self.engine.requests.events = self.engine.requests.events, []
        if self.args.pack:
            self.num_bytes += sum(map(len, pack_events(events)))
        self.sent_s += time.perf_counter() - start

    def fill(self, rows: int) -> None:
        """Submit a few rows at a time, so that their chunks do not all fall into one step."""
        for epoch in itertools.islice(self.epochs, rows - len(self.engine.requests.active)):
            sampling = SamplingParams(seed=epoch, min_new_tokens=NO_END)
            spec = SpeechRequest(
                request_id=str(epoch), text="the quick brown fox jumps over " * 8, text_closed=True, sampling=sampling,
                layout=TextLayout.STREAMING, max_frames=900, lead_ms=2000 if self.args.paced else None,
            )  # fmt: skip
            self.engine.requests.submit(spec, epoch)
            if epoch % 16 == 0:
                self.step()

    def measure(self, rows: int) -> dict[str, float]:
        self.fill(rows)
        for _ in range(30):
            self.step()
        self.engine.times.reset()
        self.sent_s = 0.0
        took: list[float] = []
        for _ in range(self.args.steps):
            start = time.thread_time()
            self.step()
            took.append(time.thread_time() - start)
        times, scale = self.engine.times, 1000 / self.args.steps
        return {
            "batch": rows,
            "cpu_ms": sum(took) * scale,
            "median_cpu_ms": 1000 * sorted(took)[len(took) // 2],
            "worst_cpu_ms": 1000 * max(took),
            "launch_ms": times.launch_s * scale,
            "pcm_ms": times.decode_s * scale,
            "host_ms": times.host_s * scale,
            "send_ms": self.sent_s * scale,
            "rows": times.num_rows / self.args.steps,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=numbers, default=[64, 1024])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--paced", action="store_true")
    parser.add_argument("--pack", action="store_true", help="also pack the events for the socket")
    parser.add_argument("--step-ms", type=float, default=50.0)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    with tempfile.TemporaryDirectory() as room:
        random_model.SHAPES["small"] = SMALL
        folder = random_model.write(Path(room), "small", torch.device("cpu"))
        bench = Bench(make_engine(folder, max(args.batch)), args)
        for rows in sorted(args.batch):
            found.append({name: round(value, 3) for name, value in bench.measure(rows).items()})
            print("  ".join(f"{name} {value:g}" for name, value in found[-1].items()), flush=True)
        if args.profile:
            with cProfile.Profile() as profile:
                bench.measure(max(args.batch))
            pstats.Stats(profile).sort_stats("tottime").print_stats(45)
    print(json.dumps({"benchmark": "gpu_host", "paced": args.paced, "rows": found}))


if __name__ == "__main__":
    main()
