"""Check and time the predictor's passes of one row, a launch each, against the kernels of ``TritonOps``.

    python -m benchmarks.predictor_pass [--replays 1000]

Random weights in the released shape, bf16, on a GPU of compute capability 9.0; 14 passes in a graph, those that a frame
has behind its first. ``rms`` is the error of the logits against fp32, in parts of their deviation. The last line is
JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from benchmarks.gpu_stages import captured, milliseconds
from benchmarks.predictor_pass.kernel import COPIES, ROWS, WIDTH, pass_kernel
from engine.ops.params import ResidualStream
from engine.ops.reference_ops import ReferenceOps
from engine.ops.stack import StackLayer, rope_tables, run_layers
from engine.ops.triton_ops import TritonOps

DEVICE = torch.device("cuda")
NUM_PASSES, FIRST_POSITION = 14, 2
NUM_LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_SIZE, VOCAB, LENGTH = 5, 1024, 16, 8, 128, 2048, 16
EPS = 1e-6
PROGRAMS, WARPS = 128, 8
# Chunks in shared memory: 12 are 192 KiB.
SLOTS = 12
EMPTY = -1


def random_weight(num_out: int, size: int) -> Tensor:
    return torch.randn(num_out, size, device=DEVICE).mul_(size**-0.5).bfloat16()


def random_norm(size: int) -> Tensor:
    return (1 + 0.2 * torch.randn(size, device=DEVICE)).bfloat16()


class Predictor:
    """Random weights, inputs of each pass, and the keys and values before the first."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.layers = [self.random_layer() for _ in range(NUM_LAYERS)]
        self.norm = random_norm(HIDDEN)
        self.heads = [random_weight(VOCAB, HIDDEN) for _ in range(NUM_PASSES)]
        self.inputs = torch.randn(NUM_PASSES, HIDDEN, device=DEVICE).bfloat16()
        self.cache = torch.randn(NUM_LAYERS, 2, 1, LENGTH, KV_HEADS, HEAD_SIZE, device=DEVICE).bfloat16()
        inverse_frequency = 1e6 ** (-torch.arange(0, HEAD_SIZE, 2) / HEAD_SIZE)
        self.rope = rope_tables(inverse_frequency, LENGTH, DEVICE)

    @staticmethod
    def random_layer() -> StackLayer:
        return StackLayer(
            norm=random_norm(HIDDEN),
            qkv=random_weight((HEADS + 2 * KV_HEADS) * HEAD_SIZE, HIDDEN),
            qkv_bias=None,
            qk_norms=(random_norm(HEAD_SIZE), random_norm(HEAD_SIZE)),
            out=random_weight(HIDDEN, HEADS * HEAD_SIZE),
            after=random_norm(HIDDEN),
            gate_up=random_weight(6 * HIDDEN, HIDDEN),
            down=random_weight(HIDDEN, 3 * HIDDEN),
        )

    def run(self, ops: ReferenceOps, cache: Tensor, convert: Callable[[Any], Any]) -> Tensor:
        """Logits [passes, vocab] as ``FrameProgram`` computes them; ``convert`` makes operands of all tensors."""
        layers, found = [StackLayer(*map(convert, layer)) for layer in self.layers], []
        for index in range(NUM_PASSES):
            residual = ResidualStream(convert(self.inputs[index : index + 1]).clone())

            def attend(layer: int, qkv: Tensor, start: int = FIRST_POSITION + index) -> Tensor:
                norms = layers[layer].qk_norms
                assert norms is not None
                return ops.predictor_attention(qkv, norms, EPS, self.rope, cache[layer], start, 1)

            run_layers(ops, layers, residual, EPS, attend)
            found.append(ops.norm_linear(residual, convert(self.norm), EPS, convert(self.heads[index])))
        return torch.cat(found)


class LaunchedPasses:
    """The same with one launch a pass. An even number of passes: two sets of buffers take turns."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor, layers = predictor, predictor.layers
        weights = [torch.cat([getattr(layer, name) for layer in layers]) for name in ("qkv", "out", "gate_up", "down")]
        self.weights = [self.descriptor(weight) for weight in weights]
        self.heads = [self.descriptor(head) for head in predictor.heads]
        norms = [(layer.norm, *(layer.qk_norms or ()), layer.after) for layer in layers]
        self.norms = torch.tensor([[norm.data_ptr() for norm in row] for row in norms], device=DEVICE)
        per_layer = (HEADS + 2 * KV_HEADS) * HEAD_SIZE // 2 + COPIES.value * 7 * WIDTH.value
        self.words = torch.full((2 * NUM_LAYERS * per_layer,), EMPTY, dtype=torch.int32, device=DEVICE)
        self.gave_up = torch.zeros(1, dtype=torch.int32, device=DEVICE)
        self.logits = torch.zeros(NUM_PASSES, VOCAB, dtype=torch.bfloat16, device=DEVICE)

    @staticmethod
    def descriptor(weight: Tensor) -> TensorDescriptor:
        """Pairs of bf16 as int32."""
        layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=32, rank=2)
        return TensorDescriptor.from_tensor(weight.view(torch.int32), [ROWS.value, WIDTH.value], layout)

    def run(self, cache: Tensor) -> Tensor:
        predictor = self.predictor
        for index in range(NUM_PASSES):
            pass_kernel[(PROGRAMS,)](
                *self.weights, self.heads[index], predictor.inputs[index], self.norms, predictor.norm, *predictor.rope,
                cache, self.logits[index], self.words, self.gave_up, EPS, HEAD_SIZE**-0.5, FIRST_POSITION + index,
                NUM_LAYERS, X=HIDDEN, HEADS=HEADS, KV=KV_HEADS, D=HEAD_SIZE, VOCAB=VOCAB, LENGTH=LENGTH,
                LAYERS=NUM_LAYERS, PROGRAMS=PROGRAMS, SLOTS=SLOTS, num_warps=WARPS, launch_cooperative_grid=True,
            )  # fmt: skip
        return self.logits


def as_fp32(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(as_fp32, value))
    return value if value is None else value.float()


def num_different(passes: LaunchedPasses, cache: Tensor, replays: int) -> int:
    """How many of ``replays`` differ from the first in any bit."""
    replay = captured(lambda: passes.run(cache))
    replay()
    logits, keys = passes.logits.clone(), cache.clone()
    different = torch.zeros((), dtype=torch.int64, device=DEVICE)
    for _ in range(replays):
        replay()
        different += (passes.logits != logits).any() | (cache != keys).any()
    return int(different.item())


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replays", type=int, default=1000, help="that are compared bit by bit")
    args = parser.parse_args()
    predictor, ops = Predictor(), TritonOps()
    exact = predictor.run(ReferenceOps(), predictor.cache.float(), as_fp32)
    passes, caches = LaunchedPasses(predictor), (predictor.cache.clone(), predictor.cache.clone())
    runs: dict[str, Callable[[], Tensor]] = {
        "kernels": lambda: predictor.run(ops, caches[0], lambda value: value),
        "launch": lambda: passes.run(caches[1]),
    }
    found: dict[str, Any] = {"benchmark": "predictor_pass", "device": torch.cuda.get_device_name(DEVICE)}
    for name, run in runs.items():
        rms = ((run().float() - exact).std() / exact.std()).item()
        us = 1000 * milliseconds(run, DEVICE, 30) / NUM_PASSES
        found[name] = {"us": round(us, 1), "rms": round(rms, 5)}
        print(f"{name}: {us:.1f} us a pass, rms {rms:.5f}", flush=True)
    found["different"] = num_different(passes, caches[1], args.replays)
    found["gave_up"] = bool(passes.gave_up.item())
    print(json.dumps(found))


if __name__ == "__main__":
    main()
