"""Check and time the predictor's positions of few rows in one launch each, against a launch for each operation.

    python -m benchmarks.predictor_pass [--precision fp8] [--rows 1,4,8] [--replays 1000]

Random weights in the released shape, on a GPU of compute capability 9.0. Times are those of the 14 positions that a
frame has behind its first pass, in a graph, alone and with ``sample_next``. ``us_first`` is the time of the first pass
with the beginning of the frame, ``us_first_apart`` that with its two positions one by one. ``rms`` is the error of a
frame's logits against fp32, in parts of their deviation. ``different`` counts replays of a frame that differ from the
first in a bit of logits, keys or values, or in which a program waited too long. The last line is JSON.

In fp8 all have the same values of weights: operations of more than two rows and the launch in bf16 read them rounded
to bf16. ``rms_launches`` is the difference between the launches.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_stages import captured, milliseconds, numbers
from engine.ops.launched_predictor import (
    HEAD_SIZE,
    HIDDEN,
    MAX_ROWS,
    NUM_HEADS,
    NUM_INNER,
    NUM_KV_HEADS,
    NUM_POSITIONS,
    NUM_QKV,
    VOCAB,
    LaunchedPredictor,
)
from engine.ops.params import SamplingTensors
from engine.ops.predictor import PredictorPasses, PredictorWeights
from engine.ops.reference_ops import ReferenceOps
from engine.ops.stack import StackLayer, rope_tables
from engine.weights.quantize import QuantizedWeight, Weight, dense, quantize

NUM_LAYERS, EPS = 5, 1e-6
# The first pass of a frame has two positions.
NUM_FIRST = 2
DEVICE = torch.device("cuda")


def random_weights(device: torch.device) -> PredictorWeights:
    """Weights in the released shape, bf16."""

    def weight(num_out: int, size: int) -> Tensor:
        return torch.randn(num_out, size, device=device).mul_(size**-0.5).bfloat16()

    def norm(size: int) -> Tensor:
        return (1 + 0.2 * torch.randn(size, device=device)).bfloat16()

    def layer() -> StackLayer:
        return StackLayer(
            norm=norm(HIDDEN), qkv=weight(NUM_QKV, HIDDEN), qkv_bias=None, qk_norms=(norm(HEAD_SIZE), norm(HEAD_SIZE)),
            out=weight(HIDDEN, NUM_HEADS * HEAD_SIZE), after=norm(HIDDEN), gate_up=weight(2 * NUM_INNER, HIDDEN),
            down=weight(HIDDEN, NUM_INNER),
        )  # fmt: skip

    return PredictorWeights(
        layers=[layer() for _ in range(NUM_LAYERS)],
        norm=norm(HIDDEN),
        eps=EPS,
        heads=[weight(VOCAB, HIDDEN) for _ in range(NUM_POSITIONS - 1)],
        rope=rope_tables(1e6 ** (-torch.arange(0, HEAD_SIZE, 2) / HEAD_SIZE), NUM_POSITIONS, device),
    )


def in_fp8(weights: PredictorWeights, make: Callable[[Tensor], QuantizedWeight] = quantize) -> PredictorWeights:
    """The same weights with the products of layers in fp8; what is retained in bf16 are their values in fp8."""

    def quantized(weight: Weight) -> QuantizedWeight:
        made = make(dense(weight, torch.bfloat16))
        return made._replace(plain=made.dequantize(torch.bfloat16))

    layers = [
        layer._replace(
            qkv=quantized(layer.qkv), out=quantized(layer.out), gate_up=quantized(layer.gate_up),
            down=quantized(layer.down),
        )
        for layer in weights.layers
    ]  # fmt: skip
    return weights._replace(layers=layers)


def in_bf16(weights: PredictorWeights) -> PredictorWeights:
    """The same weights with the products of layers as they are retained in bf16."""
    layers = [
        StackLayer(*(part.plain if isinstance(part, QuantizedWeight) else part for part in layer))
        for layer in weights.layers
    ]
    return weights._replace(layers=layers)


def in_fp32(value: Any) -> Any:
    """The same weights, with all tensors in fp32."""
    if isinstance(value, QuantizedWeight):
        return value.dequantize(torch.float32)
    if isinstance(value, Tensor):
        return value.float()
    if isinstance(value, (PredictorWeights, StackLayer)):
        return type(value)(*map(in_fp32, value))
    return type(value)(map(in_fp32, value)) if isinstance(value, (list, tuple)) else value


def random_inputs(num_rows: int, device: torch.device) -> Tensor:
    """Inputs [P, N, H] of a frame's positions, bf16."""
    return torch.randn(NUM_POSITIONS, num_rows, HIDDEN, device=device).bfloat16()


def new_cache(inputs: Tensor) -> Tensor:
    """Memory for the keys and values of a frame, with nothing of use in it."""
    return inputs.new_full((NUM_LAYERS, 2, inputs.shape[1], NUM_POSITIONS, NUM_KV_HEADS, HEAD_SIZE), torch.nan)


def run_first(passes: PredictorPasses, inputs: Tensor, cache: Tensor, together: bool = True) -> Tensor:
    """Begin a frame; logits [N, V] of its first pass, whose positions are called ``together`` or one by one."""
    if together:
        passes.begin(inputs.shape[1])
        return passes.run(tuple(inputs[:NUM_FIRST]), cache, 0, 1)
    passes.begin(MAX_ROWS)  # of so many rows a launch has one position
    run = passes.launch_positions if isinstance(passes, LaunchedPredictor) else passes.run
    return [run((inputs[i],), cache, i, 1) for i in range(NUM_FIRST)][-1]


def run_frame(passes: PredictorPasses, inputs: Tensor, cache: Tensor, together: bool = True) -> Tensor:
    """Logits [passes, N, V] of all passes of a frame."""
    inputs = inputs.clone()  # operations add to them
    logits = [run_first(passes, inputs, cache, together)]
    logits += [passes.run((inputs[i],), cache, i, i) for i in range(NUM_FIRST, NUM_POSITIONS)]
    return torch.stack(logits)


def rms_error(found: Tensor, exact: Tensor) -> float:
    """Return the error in parts of the deviation."""
    return float((found.float() - exact).square().mean().sqrt() / exact.std())


def num_different(passes: LaunchedPredictor, inputs: Tensor, num_replays: int) -> int:
    """Return how many replays of a frame differ from the first in any bit."""
    cache = new_cache(inputs)
    logits = torch.empty_like(run_frame(passes, inputs, cache))
    replay = captured(lambda: logits.copy_(run_frame(passes, inputs, cache)))
    replay()
    first = logits.clone(), cache.clone()
    different = torch.zeros((), dtype=torch.int64, device=inputs.device)
    for _ in range(num_replays):
        cache.fill_(torch.nan)
        replay()
        different += (logits != first[0]).any() | (cache != first[1]).any() | (passes.failed != 0).any()
    return int(different.item())


def us_a_position(passes: PredictorPasses, inputs: Tensor, samples: bool) -> float:
    inputs, cache, num_rows = inputs.clone(), new_cache(inputs), inputs.shape[1]
    table = torch.randn(VOCAB, HIDDEN, device=inputs.device).bfloat16()
    zeros, ones = (fill(num_rows, device=inputs.device) for fill in (torch.zeros, torch.ones))
    settings = SamplingTensors(
        temperature=0.9 * ones, top_k=(50 * ones).long(), top_p=ones,
        seed=torch.arange(num_rows, device=inputs.device), place=zeros.long(), frame=zeros.long(),
    )  # fmt: skip

    def run() -> None:
        x = inputs[NUM_FIRST]
        for position in range(NUM_FIRST, NUM_POSITIONS):
            logits = passes.run((x,), cache, position, position)
            if samples:
                _, x = passes.ops.sample_next(logits, settings, position, table)

    return 1000 * milliseconds(run, inputs.device, 30) / (NUM_POSITIONS - NUM_FIRST)


def us_first(passes: PredictorPasses, inputs: Tensor, together: bool) -> float:
    inputs, cache = inputs.clone(), new_cache(inputs)
    return 1000 * milliseconds(lambda: run_first(passes, inputs, cache, together), inputs.device, 30)


def measure(passes: PredictorPasses, inputs: Tensor, exact: Tensor) -> dict[str, float]:
    return {
        "us": round(us_a_position(passes, inputs, samples=False), 1),
        "us_sampled": round(us_a_position(passes, inputs, samples=True), 1),
        "us_first": round(us_first(passes, inputs, together=True), 1),
        "us_first_apart": round(us_first(passes, inputs, together=False), 1),
        "rms": round(rms_error(run_frame(passes, inputs, new_cache(inputs)), exact), 5),
    }


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", choices=("bf16", "fp8"), default="bf16")
    parser.add_argument("--rows", type=numbers, default=[1, 4, 8], help="at most 8 each")
    parser.add_argument("--replays", type=int, default=1000, help="that are compared bit by bit")
    args = parser.parse_args()
    from engine.ops.triton_ops import TritonOps

    torch.manual_seed(0)
    weights, ops = random_weights(DEVICE), TritonOps()
    if args.precision == "fp8":
        weights = in_fp8(weights)
    exact = PredictorPasses(ReferenceOps(), in_fp32(weights))
    launched = ops.predictor_passes(weights)
    if not isinstance(launched, LaunchedPredictor) or not launched.works:
        parser.error("needs a GPU of compute capability 9.0 with 128 multiprocessors, and Gluon")
    measured = {"operations": PredictorPasses(ops, weights), "launch": launched}
    if args.precision == "fp8":
        measured["launch_bf16"] = ops.predictor_passes(in_bf16(weights))
    rows = []
    for num_rows in args.rows:
        inputs = random_inputs(num_rows, DEVICE)
        wanted = run_frame(exact, inputs.float(), new_cache(inputs.float()))
        found: dict[str, Any] = {"rows": num_rows}
        for name, passes in measured.items():
            found[name] = measure(passes, inputs, wanted)
        if "launch_bf16" in measured:
            logits = (run_frame(measured[name], inputs, new_cache(inputs)) for name in ("launch", "launch_bf16"))
            found["rms_launches"] = round(rms_error(*map(Tensor.float, logits)), 5)
        found["different"] = num_different(launched, inputs, args.replays)
        print(json.dumps(found), flush=True)
        rows.append(found)
    report = {"benchmark": "predictor_pass", "precision": args.precision, "rows": rows}
    print(json.dumps(report | {"device": torch.cuda.get_device_name(DEVICE)}))


if __name__ == "__main__":
    main()
