"""Measure device milliseconds of one codec frame by stage, batch size and kernel.

Random weights, every row at one context length, each stage in a graph of its own and timed by device events. On the CPU
the same computations run eagerly, to test the program only.

    python -m benchmarks.gpu_stages [--shape 1.7b] [--batch 1,64,256] [--context 256] [--profile 64] [--off sample,conv]
    [--precision bf16] [--floor]

``--floor`` adds the time of each operation beside the least that its bytes and its arithmetic take on this device. The
last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks import random_model
from benchmarks.kernel_floors import Ceilings, as_json, kernel_rows, measure_ceilings, print_rows
from benchmarks.roofline import Roofline
from engine.config import PRECISIONS, EngineConfig
from engine.load import build_engine
from engine.models.qwen3_tts.codec_program import CodecProgram
from engine.models.qwen3_tts.frame_program import FrameProgram
from engine.models.qwen3_tts.load import build_family, quantize_talker
from engine.program.decode_executor import FRAME_PRIORITY, GATHERED_PRIORITY
from engine.runtime.engine import Engine

BLOCK = 16


@torch.inference_mode()
def make_engine(args: argparse.Namespace, device: torch.device, dtype: torch.dtype | None = None) -> Engine:
    dtype = dtype or (torch.bfloat16 if device.type == "cuda" else torch.float32)
    with tempfile.TemporaryDirectory() as folder:
        model, codec = random_model.build(Path(folder), args.shape, dtype, device)
    if args.precision != "bf16":
        quantize_talker(model.talker, args.precision, device)
    rows = max(args.batch)
    config = EngineConfig(
        max_batch_size=rows,
        max_running_requests=rows,
        num_blocks=rows * (args.context // BLOCK + 1),
        graphs=True,
        max_graph_positions=args.context + BLOCK,
        triton_kernels=not args.plain,
        precision=args.precision,
        disabled_kernels=tuple(args.off),
    )
    return build_engine(build_family(model, codec), config, dtype, device)


def fill(program: FrameProgram, decoder: CodecProgram, rows: int, context: int) -> None:
    """Prepare rows in the middle of their speech, each with its own blocks."""
    blocks = context // BLOCK + 1
    inputs = program.inputs.host
    usual = dict(temperature=0.9, predictor_temperature=0.9, top_k=50, predictor_top_k=50, penalty=1.05, frame=10)
    usual |= dict(top_p=1.0, predictor_top_p=1.0, goes_on=1, forget=-1, banned=1, position=context - 1)
    for name, value in usual.items():
        inputs[name][:rows] = value
    slots = torch.arange(1, rows + 1)
    inputs["slot"][:rows] = inputs["seed"][:rows] = slots.numpy()
    inputs["table"][:rows] = torch.arange(1, rows * blocks + 1).view(rows, blocks).numpy()
    program.inputs.upload(rows)
    for places in (decoder.slots, decoder.sources):
        places[:rows] = slots.to(places.device)
    decoder.starts[:rows], decoder.first[:rows] = 3, 100


def stages(engine: Engine, rows: int) -> dict[str, Callable[[], object]]:
    program, decoder = engine.runner.program, engine.stage.codec.program
    assert isinstance(program, FrameProgram)
    assert isinstance(decoder, CodecProgram)
    given = {name: value[:rows] for name, value in program.inputs.device.items()}
    settings = program.sampling_tensors(rows, "predictor_")
    hidden = torch.randn(rows, program.text_table.shape[1], device=program.device, dtype=program.text_table.dtype)
    size = program.talker.code_predictor.config.vocab_size
    logits = torch.randn(rows, size, device=program.device, dtype=hidden.dtype)
    code0 = torch.zeros(rows, dtype=torch.int64, device=program.device)

    def draws() -> None:
        for codebook in range(1, program.num_books):
            program.ops.sample(logits, settings, codebook)
        program.first_code(hidden, given)

    found: dict[str, Callable[[], object]] = {
        "frame": lambda: program.run_frame(rows),
        "talker": lambda: program.talker_stack.run(hidden, given["table"], given["position"], together=False),
        "predictor": lambda: program.run_predictor(hidden, code0, settings),
        "sampling": draws,
        "decode": lambda: decoder.run(rows, 1),
    }
    if program.device.type == "cuda":
        found["together"] = lambda: beside(found["frame"], found["decode"])
    if rows <= decoder.rows_of(4):
        found["decode_4"] = lambda: decoder.run(rows, 4)
    return found


def beside(frame: Callable[[], object], decode: Callable[[], object]) -> None:
    """Run the decode of one step beside the frame of the next on a second stream, by the engine's priorities."""
    here, streams = torch.cuda.current_stream(), []
    for run, priority in ((decode, GATHERED_PRIORITY), (frame, FRAME_PRIORITY)):
        streams.append(torch.cuda.Stream(priority=priority))
        streams[-1].wait_stream(here)
        with torch.cuda.stream(streams[-1]):
            run()
    for stream in streams:
        here.wait_stream(stream)


def milliseconds(run: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Median milliseconds of ``repeats`` replays."""
    if device.type != "cuda":
        start = time.perf_counter()
        run()
        return 1000 * (time.perf_counter() - start)
    replay = captured(run)
    for _ in range(3):
        replay()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    marks[0].record()
    for mark in marks[1:]:
        replay()
        mark.record()
    torch.cuda.synchronize()
    times = sorted(a.elapsed_time(b) for a, b in pairwise(marks))
    return times[len(times) // 2]


def captured(run: Callable[[], object]) -> Callable[[], None]:
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def kernels(run: Callable[[], object], num: int = 32) -> list[tuple[str, int, float]]:
    """Name, launches and total microseconds of the most expensive kernels of one replay."""
    replay = captured(run)
    replay()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        replay()
        torch.cuda.synchronize()
    found = [(event.key, event.count, event.device_time_total) for event in seen.key_averages()]
    return sorted(found, key=lambda item: -item[2])[:num]


def floors(engine: Engine, rows: int, ceilings: Ceilings) -> list[dict[str, Any]]:
    """Print and return what ``kernel_rows`` finds of the talker, the predictor and the decoder."""
    program, decoder = engine.runner.program, engine.stage.codec.program
    assert isinstance(program, FrameProgram)
    owners = {"talker": [program.talker_stack], "predictor": [program, program.passes], "decode": [decoder]}
    runs, is_cuda = stages(engine, rows), program.device.type == "cuda"
    found = [row for name, some in owners.items() for row in kernel_rows(name, runs[name], some, ceilings, is_cuda)]
    print_rows(found)
    return as_json(found)


@torch.inference_mode()
def measure(args: argparse.Namespace, device: torch.device) -> list[dict[str, Any]]:
    engine = make_engine(args, device)
    floor = Roofline.of(args.shape)
    ceilings = measure_ceilings(device) if args.floor else None
    if ceilings is not None:
        print(f"ceilings: {ceilings.bandwidth / 1e12:.3f} TB/s, {ceilings.rate / 1e12:.1f} TFLOP/s", flush=True)
    found = []
    for rows in args.batch:
        fill(engine.runner.program, engine.stage.codec.program, rows, args.context)
        start = time.perf_counter()
        row: dict[str, Any] = {"batch": rows}
        for name, run in stages(engine, rows).items():
            row[name] = milliseconds(run, device, args.repeats)
        row["total"] = row["frame"] + row["decode"]
        row["floor"] = floor.total_ms(rows, args.context)
        row["ratio"] = row["total"] / row["floor"]
        row["took_s"] = time.perf_counter() - start
        found.append({name: round(value, 3) for name, value in row.items()})
        print("  ".join(f"{name} {value:g}" for name, value in found[-1].items()), flush=True)
        if ceilings is not None:
            found[-1]["kernels"] = floors(engine, rows, ceilings)
        if rows in args.profile and device.type == "cuda":
            for stage in ("frame", "decode"):
                print(f"-- kernels of {stage} at {rows}")
                for name, count, us in kernels(stages(engine, rows)[stage]):
                    print(f"{us:10.1f} us {count:5d} x {name[:110]}", flush=True)
    return found


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="1.7b", choices=list(random_model.SHAPES))
    parser.add_argument("--batch", type=numbers, default=[1, 8, 64, 256, 512, 1024, 1536])
    parser.add_argument("--context", type=int, default=256, help="past positions of every row")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--profile", type=numbers, default=[], help="batch sizes whose kernels are listed")
    parser.add_argument("--off", type=lambda text: text.split(","), default=[], help="kernels to turn off")
    parser.add_argument(
        "--precision", default="bf16", choices=PRECISIONS, help="of the weights of talker and predictor"
    )
    parser.add_argument("--floor", action="store_true", help="compare each operation with its floor")
    parser.add_argument("--plain", action="store_true", help="use no fused kernel")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    device = torch.device(args.device)
    rows = measure(args, device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    settings = {
        "shape": args.shape,
        "context": args.context,
        "precision": args.precision,
        "off": args.off,
        "plain": args.plain,
    }
    print(json.dumps({"benchmark": "gpu_stages", "device": name, "torch": torch.__version__, **settings, "rows": rows}))


if __name__ == "__main__":
    main()
