"""Compile every Triton kernel for GPUs that are not there, and report the shared memory and registers that it uses.

    python -m benchmarks.kernel_targets [--targets 80,86,89,90] [--rows 1,2,8,64,256,1024] [--precision bf16,fp8,int4]
        [--dtype bfloat16] [--jobs 16]

Needs Triton and no GPU. The programs of both families run on the CPU in the released widths with one layer; launches
are recorded and not run. Each distinct one is compiled for each target, a compute capability times ten. A kernel fits
if its shared memory is within that of one block; ``stack`` bytes are registers that were spilled. The last line is
JSON. The exit status is 1 if a kernel does not compile or fit.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import gpu_stages, random_model
from benchmarks.cosyvoice import Bench, random_parts
from engine.config import EngineConfig
from engine.memory.kv_cache import PagedKV
from engine.models.base import FrameContext
from engine.models.cosyvoice3.config import CosyVoice3Config
from engine.models.cosyvoice3.flow_memory import FlowPageStore
from engine.models.cosyvoice3.flow_program import FlowProgram
from engine.models.cosyvoice3.model import CosyVoice3
from engine.models.cosyvoice3.talker_program import make_frames
from engine.ops.parallel_compile import intercept
from engine.ops.reference_ops import select_ops
from engine.ops.tiles import unit_shape

# Of one block of threads, in units of 1,024 bytes, by target (CUDA programming guide, compute capabilities).
SHARED_KIB = {80: 163, 86: 99, 89: 99, 90: 227, 120: 99}
MIN_FP8_TARGET, MIN_EARLY_TARGET, HOPPER = 89, 90, 90
MAX_FLOW_BLOCKS = 64
TYPES = {
    torch.bfloat16: "bf16", torch.float32: "fp32", torch.float8_e4m3fn: "fp8e4nv", torch.int64: "i64",
    torch.int32: "i32", torch.int8: "i8", torch.uint8: "u8", torch.bool: "i1",
}  # fmt: skip
ALIGNED = [["tt.divisibility", 16]]
CPU = torch.device("cpu")
SHAPES = ("1.7b", "0.6b")
CONTEXT = 256
NUM_PAGES = 4


class Variant(NamedTuple):
    """A kernel by module and name, and all that Triton specializes it on."""

    module: str
    name: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[int, Any], ...]
    aligned: tuple[int, ...]
    options: tuple[tuple[str, int], ...]

    @property
    def min_target(self) -> int:
        if "launch_pdl" in dict(self.options):
            return MIN_EARLY_TARGET
        return MIN_FP8_TARGET if any(kind == "*fp8e4nv" for _, kind in self.signature) else min(SHARED_KIB)

    def runs_on(self, target: int) -> bool:
        return target == HOPPER if self.is_hopper_unit() else target >= self.min_target

    def is_hopper_unit(self) -> bool:
        """Return whether it is a residual unit that only Hopper computes so."""
        if self.name == "resident_unit_kernel":
            return True
        if self.name != "residual_unit_kernel":
            return False
        channels = next(value for place, value in self.constants if self.signature[place][0] == "C")
        tile, options = unit_shape(channels, on_hopper=False), dict(self.options)
        return tile is None or (tile.warps, tile.stages) != (options["num_warps"], options["num_stages"])


class Resources(NamedTuple):
    """Bytes of shared memory and of stack, registers of a thread; or why the kernel did not compile."""

    shared: int = 0
    registers: int = 0
    stack: int = 0
    error: str = ""


# -- which kernels there are -------------------------------------------------------------------------------------


def specialize(kernel: Any, args: Sequence[Any], options: Mapping[str, Any]) -> Variant:
    """The variant of ``kernel`` that a launch with these arguments runs."""
    values = dict(zip(kernel.arg_names, args, strict=False)) | dict(options)
    signature, constants, aligned = [], [], []
    for place, param in enumerate(kernel.params):
        value = values.pop(param.name, param.default)
        is_special = not param.do_not_specialize and isinstance(value, int)
        if param.is_constexpr or (is_special and value == 1):
            signature.append((param.name, "constexpr"))
            constants.append((place, value))
            continue
        signature.append((param.name, kind(value)))
        address = value.data_ptr() if isinstance(value, Tensor) else value
        if (isinstance(value, Tensor) or is_special) and address % 16 == 0:
            aligned.append(place)
    module, name = kernel.fn.__module__, kernel.fn.__name__
    return Variant(module, name, tuple(signature), tuple(constants), tuple(aligned), tuple(values.items()))


def kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"*{TYPES[value.dtype]}"
    if isinstance(value, int):
        return "i64" if value.bit_length() > 31 else "i32"
    return "fp32"


@torch.inference_mode()
def record(rows: Sequence[int], precisions: Sequence[str], dtype: torch.dtype) -> set[Variant]:
    from engine.ops.triton_early import EARLY_OPTIONS

    found: set[Variant] = set()

    def note(kernel: Any, grid: object, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        plain = {name: value for name, value in options.items() if name not in EARLY_OPTIONS}
        found.update(specialize(kernel, args, some) for some in (options, plain))

    # A CPU has no such product; cuBLAS has it on a GPU.
    products = mock.patch.object(F, "scaled_mm", empty_product)
    early = mock.patch("engine.ops.triton_ops.can_start_early", return_value=True)
    with products, early, intercept(note):
        for precision in precisions:
            for shape in SHAPES:
                run_qwen3_tts(shape, rows, precision, dtype)
            run_cosyvoice3_talker(rows, precision, dtype)
        run_flow(rows, dtype)
    return found


def empty_product(x: Tensor, weight: Tensor, *scales: object, output_dtype: torch.dtype, **options: object) -> Tensor:
    """Memory for what ``scaled_mm`` returns."""
    return x.new_empty(x.shape[0], weight.shape[1], dtype=output_dtype)


def run_qwen3_tts(shape: str, rows: Sequence[int], precision: str, dtype: torch.dtype) -> None:
    """Run frames, prefill and decoding over the fused operations."""
    args = argparse.Namespace(shape=f"{shape}, one layer", batch=rows, context=CONTEXT, precision=precision, off=[])
    random_model.SHAPES[args.shape] = one_layer(random_model.SHAPES[shape])
    engine = gpu_stages.make_engine(argparse.Namespace(plain=False, **vars(args)), CPU, dtype)
    program, decoder = engine.runner.program, engine.stage.codec.program  # type: ignore[attr-defined]
    ops: Any = select_ops(engine.config, torch.device("cuda"))
    for owner in (program, program.talker_stack, decoder):
        owner.ops = ops
    for number in rows:
        gpu_stages.fill(program, decoder, number, CONTEXT)
        stages = gpu_stages.stages(engine, number)
        ops.on_hopper = False
        for run in stages.values():
            run()
        ops.on_hopper = True
        for name in stages.keys() & {"decode", "decode_4"}:
            stages[name]()
        program.run_prefill(min(number, engine.config.max_prefill_positions))


def one_layer(shape: Mapping[str, Any]) -> dict[str, Any]:
    parts = {name: shape[name] | {"layers": 1} for name in ("talker", "predictor", "codec")}
    return dict(shape) | parts


def run_cosyvoice3_talker(rows: Sequence[int], precision: str, dtype: torch.dtype) -> None:
    full = CosyVoice3Config()
    transformer = dataclasses.replace(full.talker.transformer, num_hidden_layers=1)
    sizes = dataclasses.replace(full, talker=dataclasses.replace(full.talker, transformer=transformer))
    talker, _, _ = random_parts(sizes, dtype, CPU, precision)
    model = CosyVoice3(sizes, talker, Bench.tokenizer(sizes))
    config = EngineConfig(max_batch_size=max(rows), precision=precision)
    kv = PagedKV(model.kv_shape, 2, config.block_size, dtype, CPU)
    program = make_frames(model, FrameContext(kv, config))
    program.ops = program.stack.ops = select_ops(config, torch.device("cuda"))
    for number in rows:
        program.run_frame(number)
        program.run_prefill(min(number, config.max_prefill_positions))


def run_flow(rows: Sequence[int], dtype: torch.dtype) -> None:
    from engine.ops.triton_flow import TritonFlowOps

    full = CosyVoice3Config()
    dit = dataclasses.replace(full.flow.dit, depth=1)
    sizes = dataclasses.replace(full, flow=dataclasses.replace(full.flow, dit=dit))
    _, flow, _ = random_parts(sizes, dtype, CPU)
    pages = FlowPageStore(sizes.flow, NUM_PAGES, dtype, CPU)
    cells = [number for number in rows if number <= MAX_FLOW_BLOCKS]
    program = FlowProgram(flow, pages, TritonFlowOps(), max(cells), max(cells), NUM_PAGES + 1)
    for number in cells:
        program.stage([], number)
        program.run(number, NUM_PAGES + 1)


# -- what they use -----------------------------------------------------------------------------------------------


def compile_for(variant: Variant, target: int) -> Resources:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(importlib.import_module(variant.module), variant.name)
    source = ASTSource(
        kernel, dict(variant.signature), {(place,): value for place, value in variant.constants},
        {(place,): ALIGNED for place in variant.aligned},
    )  # fmt: skip
    try:
        made = triton.compile(source, target=GPUTarget("cuda", target, 32), options=dict(variant.options))
    except Exception as error:
        return Resources(error=f"{type(error).__name__}: {error}".splitlines()[0][:200])
    return Resources(made.metadata.shared, *registers_and_stack(made.asm["cubin"]))


def registers_and_stack(cubin: bytes) -> tuple[int, int]:
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return parse_usage(text)


def parse_usage(text: str) -> tuple[int, int]:
    """``REG:40 STACK:0 SHARED:0 ...`` -> registers, stack."""
    fields = dict(part.split(":") for part in text.split() if part.startswith(("REG:", "STACK:")))
    return int(fields["REG"]), int(fields["STACK"])


def compile_all(variants: Sequence[Variant], targets: Sequence[int], jobs: int) -> dict[tuple[Variant, int], Resources]:
    pairs = [(variant, target) for variant in variants for target in targets if variant.runs_on(target)]
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        found = pool.map(compile_for, *zip(*pairs, strict=True), chunksize=4)
        return dict(zip(pairs, found, strict=True))


def problems(found: Mapping[tuple[Variant, int], Resources]) -> Iterator[str]:
    """What does not compile or fit."""
    for (variant, target), used in found.items():
        constants = {variant.signature[place][0]: value for place, value in variant.constants}
        what = f"sm_{target} {variant.name} {constants} {dict(variant.options)}"
        if used.error:
            yield f"{what}: {used.error}"
        elif used.shared > 1024 * SHARED_KIB[target]:
            yield f"{what}: {used.shared} bytes of shared memory, at most {SHARED_KIB[target]} KiB"


def rows_of(found: Mapping[tuple[Variant, int], Resources]) -> list[dict[str, Any]]:
    """One row for each kernel and target: the most that any of its variants uses."""
    grouped: dict[tuple[str, int], list[Resources]] = defaultdict(list)
    for (variant, target), used in found.items():
        grouped[variant.name, target].append(used)
    return [
        {
            "kernel": name,
            "target": target,
            "variants": len(some),
            "shared": max(used.shared for used in some),
            "registers": max(used.registers for used in some),
            "stack": max(used.stack for used in some),
            "spilling": sum(used.stack > 0 for used in some),
            "bad": sum(bool(used.error) or used.shared > 1024 * SHARED_KIB[target] for used in some),
        }
        for (name, target), some in sorted(grouped.items())
    ]


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def known_targets(text: str) -> list[int]:
    found = numbers(text)
    if unknown := set(found) - set(SHARED_KIB):
        raise argparse.ArgumentTypeError(f"{sorted(unknown)} of {text!r}; known: {sorted(SHARED_KIB)}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", type=known_targets, default=[80, 86, 89, 90])
    parser.add_argument("--rows", type=numbers, default=[1, 2, 8, 64, 256, 1024])
    parser.add_argument("--precision", type=lambda text: text.split(","), default=["bf16", "fp8", "int4"])
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    variants = sorted(record(args.rows, args.precision, getattr(torch, args.dtype)), key=repr)
    print(f"{len(variants)} variants", flush=True)
    found = compile_all(variants, args.targets, args.jobs)
    rows = rows_of(found)
    print(f"{'kernel':28} {'target':>6} {'variants':>8} {'shared':>7} {'registers':>9} {'stack':>6} {'bad':>4}")
    for row in rows:
        print(
            f"{row['kernel']:28} {row['target']:6d} {row['variants']:8d} {row['shared']:7d} {row['registers']:9d} "
            f"{row['stack']:6d} {row['bad']:4d}"
        )
    bad = list(problems(found))
    for line in bad:
        print(line)
    print(json.dumps({"benchmark": "kernel_targets", "dtype": args.dtype, "rows": rows, "problems": bad}))
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
