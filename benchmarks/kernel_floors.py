"""Times of a stage's operations beside the least time that their bytes and their arithmetic allow.

A stage runs eagerly once, its operations recorded and its kernels profiled, so that caches are as in a frame. An
operation's bytes are its inputs read once and its outputs written once, whatever its kernels move.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from engine.ops.launched_predictor import LaunchedPredictor
from engine.ops.params import ConvParams, PaddedBufferPlan, PagedCall, ResidualStream, ResidualUnitParams, RingCall
from engine.ops.reference_ops import ReferenceOps
from engine.weights.quantize import QuantizedWeight, Weight

# Above this fp8 weights multiply fp8 activations, at twice the rate.
MAX_WEIGHT_ONLY_ROWS = 2
NUM_PROFILES = 5
MARK = "operation "
# Operations that only pass their argument on unless there are parts to be added.
TRIVIAL_WITHOUT_PARTS = "flush_residual"


class Ceilings(NamedTuple):
    """Bytes a second of a large copy, read plus written; bf16 operations a second of a large product."""

    bandwidth: float
    rate: float

    def floor_s(self, cost: Cost) -> float:
        return max(cost.num_bytes / self.bandwidth, cost.num_operations / self.rate)


@dataclass(frozen=True, slots=True)
class Cost:
    """``num_operations`` are halved where the operands are fp8."""

    num_bytes: float
    num_operations: float = 0.0
    shape: str = ""


@dataclass(slots=True)
class KernelRow:
    """All calls of one operation and shape in one stage; times in microseconds."""

    stage: str
    operation: str
    shape: str
    calls: int = 0
    us: float = 0.0
    floor_us: float = 0.0
    share: float = 0.0
    bound: str = ""
    megabytes: float = 0.0
    gigaflop: float = 0.0


# -- what an operation costs -------------------------------------------------------------------------------------


def weight_cost(weight: Weight, rows: int) -> tuple[float, float]:
    """Bytes of a weight as its product with ``rows`` rows reads it, and its operations for each row."""
    operations = 2.0 * weight.shape[0] * weight.shape[1]
    if isinstance(weight, Tensor):
        return weight.nbytes, operations
    if isinstance(weight, QuantizedWeight) and rows > MAX_WEIGHT_ONLY_ROWS:
        if weight.plain is not None:
            return weight.plain.nbytes, operations
        return weight.data.nbytes + weight.scale.nbytes, operations / 2
    return weight.data.nbytes + weight.scale.nbytes, operations


def product_cost(weight: Weight, x: Tensor, num_out: int, *others: Tensor) -> Cost:
    rows = x.shape[0]
    num_bytes, operations = weight_cost(weight, rows)
    moved = num_bytes + x.nbytes + rows * num_out * x.element_size() + sum(other.nbytes for other in others)
    return Cost(moved, rows * operations, f"{rows}x{weight.shape[1]} to {weight.shape[0]}")


def norm_linear(residual: ResidualStream, norm: Tensor, eps: float, weight: Weight, *_: object) -> Cost:
    return product_cost(weight, residual.x, weight.shape[0])


def norm_swiglu(residual: ResidualStream, norm: Tensor, eps: float, weight: Weight) -> Cost:
    return product_cost(weight, residual.x, weight.shape[0] // 2)


def add_linear(residual: ResidualStream, y: Tensor, weight: Weight) -> Cost:
    return product_cost(weight, y, weight.shape[0], residual.x)


def norm(residual: ResidualStream, *_: object) -> Cost:
    return elementwise(residual.x, 2)


def elementwise(x: Tensor, times: int) -> Cost:
    return Cost(times * x.nbytes, 0.0, "x".join(map(str, x.shape)))


def attention_cost(qkv: Tensor, cache: Tensor, num_read: int, num_pairs: int) -> Cost:
    """``num_read`` positions of keys and values, ``num_pairs`` of a new position and one that it attends to."""
    kv_heads, size = cache.shape[3:]
    heads = qkv.shape[1] // size - 2 * kv_heads
    out = qkv.shape[0] * heads * size
    num_bytes = qkv.nbytes + out * qkv.element_size() + 2 * num_read * kv_heads * size * cache.element_size()
    return Cost(num_bytes, 4.0 * num_pairs * heads * size, f"{qkv.shape[0]} rows")


def paged_attention(qkv: Tensor, norms: object, eps: float, cache: Tensor, call: PagedCall) -> Cost:
    num_positions = int(call.positions.sum()) + len(call.positions)
    return attention_cost(qkv, cache, num_positions, num_positions)


def predictor_attention(
    qkv: Tensor, norms: object, eps: float, rope: object, cache: Tensor, start: int, num_tokens: int
) -> Cost:
    num_positions = cache.shape[1] * (start + num_tokens)
    return attention_cost(qkv, cache, num_positions, num_positions * num_tokens)


def predictor_pass(
    launched: LaunchedPredictor, inputs: Sequence[Tensor], cache: Tensor, start: int, codebook: int
) -> Cost:
    """A launch for position 0 alone counts its head, too, whose logits are not needed."""
    rows, lines = len(inputs[0]), sum(map(len, inputs))
    products, head = [described.base for described in launched.products], launched.heads[codebook - 1].base
    # An element of products is two inputs; heads are bf16.
    num_values = lines * sum(2 * weight.numel() for weight in products) + rows * head.nbytes // 2
    scales = 0 if launched.scales is None else 4 * sum(len(weight) for weight in products)
    weights = sum(weight.nbytes for weight in (*products, head)) + scales
    past = 2 * rows * start * cache[0, 0, 0, 0].numel() * cache.shape[0] * cache.element_size()
    moved = weights + past + 2 * sum(x.nbytes for x in inputs)
    return Cost(moved, 2.0 * num_values, f"{rows} rows, {len(inputs)} positions")


def ring_attention(qkv: Tensor, ring: Tensor, call: RingCall) -> Cost:
    num_positions = len(call.slots) * call.window
    return attention_cost(qkv, ring, num_positions, num_positions * call.num_tokens)


def sample(logits: Tensor, *_: object) -> Cost:
    return elementwise(logits, 1)


def sample_next(logits: Tensor, settings: object, codebook: int, table: Tensor) -> Cost:
    row = table.shape[1] * table.element_size()
    return Cost(logits.nbytes + 2 * len(logits) * row, 0.0, "x".join(map(str, logits.shape)))


def conv(
    x: Tensor, product: ConvParams, length: int, residual: Tensor | None = None, raw: Tensor | None = None,
    act: Tensor | None = None, waves: object = None, gelu: bool = False,
) -> Cost:  # fmt: skip
    taps, num_in, num_out = product.weight.shape
    outputs = sum(tensor is not None for tensor in (residual, raw, act))
    rows = x.shape[0] * length
    num_bytes = x.numel() * x.element_size() + product.weight.nbytes + outputs * rows * num_out * x.element_size()
    return Cost(num_bytes, 2.0 * rows * taps * num_in * num_out, f"{rows}, {taps} taps, {num_in} to {num_out}")


def residual_unit(
    padded: Tensor, unit: ResidualUnitParams, x: Tensor, out: Tensor, waves: object, is_last: bool
) -> Cost:
    taps, channels, _ = unit.wide.weight.shape
    rows = x.shape[0] * x.shape[1]
    values = padded.numel() + (2 if is_last else 3) * x.numel()
    num_bytes = values * x.element_size() + unit.wide.weight.nbytes + unit.narrow.weight.nbytes
    return Cost(num_bytes, 2.0 * rows * (taps + 1) * channels * channels, f"{rows}, {taps} taps, {channels}")


def depthwise_norm(x: Tensor, weight: Tensor, *_: object) -> Cost:
    return elementwise(x, 2)


def output_conv(x: Tensor, weight: Tensor, bias: Tensor, pcm: Tensor) -> Cost:
    num_operations = 2.0 * pcm.numel() * weight.numel()
    return Cost(x.numel() * x.element_size() + pcm.nbytes, num_operations, f"{pcm.numel()}, {x.shape[2]} to 1")


def conv_state(pads: PaddedBufferPlan, state: Tensor, slots: Tensor, *_: object) -> Cost:
    values = len(slots) * pads.num_state_values
    return Cost(2 * values * state.element_size(), 0.0, f"{len(slots)} slots")


COSTS: dict[str, Callable[..., Cost]] = {
    "norm_linear": norm_linear,
    "norm_swiglu": norm_swiglu,
    "add_linear": add_linear,
    "add_rms_norm": norm,
    "flush_residual": norm,
    "paged_attention": paged_attention,
    "predictor_attention": predictor_attention,
    "predictor_pass": predictor_pass,
    "ring_attention": ring_attention,
    "sample": sample,
    "sample_first": sample,
    "sample_next": sample_next,
    "conv": conv,
    "residual_unit": residual_unit,
    "depthwise_norm": depthwise_norm,
    "output_conv": output_conv,
    "load_conv_state": conv_state,
    "store_conv_state": conv_state,
}


# -- recording and timing ----------------------------------------------------------------------------------------


class RecordingOps:
    """Stands in for ``ops``: calls from outside are marked for the profiler, with their cost; calls inside are not."""

    def __init__(self, ops: ReferenceOps) -> None:
        self._ops = ops
        self.calls: list[tuple[str, Cost]] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._ops, name)
        if name not in COSTS:
            return method

        def call(*args: Any, **options: Any) -> Any:
            if name == TRIVIAL_WITHOUT_PARTS and args[0].parts is None:
                return method(*args)
            self.calls.append((name, COSTS[name](*args, **options)))
            with record_function(f"{MARK}{len(self.calls) - 1}"):
                return method(*args, **options)

        return call


@contextmanager
def recorded(owners: Sequence[Any]) -> Iterator[RecordingOps]:
    """Replace ``ops`` of these programs, which are the same."""
    ops = owners[0].ops
    recording = RecordingOps(ops)
    try:
        for owner in owners:
            owner.ops = recording
        yield recording
    finally:
        for owner in owners:
            owner.ops = ops


def profile_operations(
    run: Callable[[], object], owners: Sequence[Any], is_cuda: bool
) -> list[tuple[str, Cost, float]]:
    """Name, cost and microseconds of each operation of one run."""
    run()
    with recorded(owners) as recording, profile(activities=activities(is_cuda)) as seen:
        run()
        if is_cuda:
            torch.cuda.synchronize()
    times = operation_times(seen.profiler.kineto_results.events(), is_cuda)
    return [(*call, times.get(number, 0.0)) for number, call in enumerate(recording.calls)]


def activities(is_cuda: bool) -> list[ProfilerActivity]:
    return [ProfilerActivity.CPU, ProfilerActivity.CUDA] if is_cuda else [ProfilerActivity.CPU]


def operation_times(events: Sequence[Any], is_cuda: bool) -> dict[int, float]:
    """Microseconds by number: on CUDA those of the kernels that were launched within, else those of the call."""
    host = [event for event in events if event.device_type() == DeviceType.CPU]
    marks = sorted(
        (event.start_ns(), event.start_ns() + event.duration_ns(), int(event.name().removeprefix(MARK)))
        for event in host
        if event.name().startswith(MARK)
    )
    if not is_cuda:
        return {number: (end - start) / 1000 for start, end, number in marks}
    starts = [start for start, _, _ in marks]
    launches = {event.correlation_id(): event.start_ns() for event in host if is_launch(event.name())}
    found = dict.fromkeys((number for _, _, number in marks), 0.0)
    for event in events:
        launched = launches.get(event.correlation_id())
        if event.device_type() != DeviceType.CUDA or launched is None or event.name().startswith(MARK):
            continue
        place = bisect_right(starts, launched) - 1
        if place >= 0 and launched < marks[place][1]:
            found[marks[place][2]] += event.duration_ns() / 1000
    return found


def is_launch(name: str) -> bool:
    return name.startswith(("cudaLaunch", "cuLaunch", "cudaMemcpy", "cudaMemset"))


def kernel_rows(
    stage: str, run: Callable[[], object], owners: Sequence[Any], ceilings: Ceilings, is_cuda: bool
) -> list[KernelRow]:
    """Rows of one stage, those first that lose most time."""
    profiles = [profile_operations(run, owners, is_cuda) for _ in range(NUM_PROFILES if is_cuda else 1)]
    rows: dict[tuple[str, str], KernelRow] = {}
    for calls in zip(*profiles, strict=True):
        name, cost, _ = calls[0]
        row = rows.setdefault((name, cost.shape), KernelRow(stage, name, cost.shape))
        row.calls += 1
        row.us += median(us for _, _, us in calls)
        row.floor_us += 1e6 * ceilings.floor_s(cost)
        row.megabytes += cost.num_bytes / 1e6
        row.gigaflop += cost.num_operations / 1e9
    for row in rows.values():
        row.share = row.floor_us / row.us if row.us else 0.0
        by_bytes = row.megabytes * 1e6 / ceilings.bandwidth >= row.gigaflop * 1e9 / ceilings.rate
        row.bound = "bytes" if by_bytes else "operations"
    return sorted(rows.values(), key=lambda row: row.floor_us - row.us)


def print_rows(rows: Sequence[KernelRow]) -> None:
    print(f"{'stage':10} {'operation':20} {'shape':32} {'calls':>5} {'us':>9} {'floor':>9} {'share':>6}  bound")
    for row in rows:
        times = f"{row.calls:5d} {row.us:9.1f} {row.floor_us:9.1f} {100 * row.share:5.0f}%"
        print(f"{row.stage:10} {row.operation:20} {row.shape:32} {times}  {row.bound}", flush=True)


def as_json(rows: Sequence[KernelRow]) -> list[dict[str, Any]]:
    return [
        {name: round(value, 3) if isinstance(value, float) else value for name, value in asdict(row).items()}
        for row in rows
    ]


@torch.inference_mode()
def measure_ceilings(device: torch.device) -> Ceilings:
    """Measure a copy of 1 GB and a bf16 product of 8,192 in each dimension; on the CPU small ones."""
    is_cuda = device.type == "cuda"
    size, side = (2**29, 8192) if is_cuda else (2**20, 128)
    source = torch.randn(size // 4, device=device)
    target = torch.empty_like(source)
    x = torch.randn(side, side, device=device).to(torch.bfloat16)
    return Ceilings(
        2 * source.nbytes / median_s(lambda: target.copy_(source), is_cuda),
        2 * side**3 / median_s(lambda: x @ x, is_cuda),
    )


def median_s(run: Callable[[], object], is_cuda: bool, repeats: int = 10) -> float:
    times = []
    for _ in range(repeats + 3):
        start = time.perf_counter()
        run()
        if is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return median(times[3:])
