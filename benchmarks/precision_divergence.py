"""Compare precisions of the talker at every layer boundary and in the logits, on the same inputs.

    python -m benchmarks.precision_divergence --replies FOLDER/bf16.npz --texts TEXTS   the embedded voice
    python -m benchmarks.precision_divergence --shape 1.7b                              random weights of that shape

The reference is fp32 arithmetic over the same weights. All precisions are given the inputs and codes of the same
replies (``precision_quality speak``), or random ones. ``fp8 64`` computes 64 rows at a time: kernels depend on that.
A state's error is |state - reference| / |reference|; divergences of logits are those of Kullback and Leibler, in nats,
at temperature 1. On the CPU fp8 is computed by plain operations that round the same values. The last line is JSON.
"""

from __future__ import annotations

import argparse
import copy
import json
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import random_model
from benchmarks.precision_quality import Replies, make_request
from engine.config import EngineConfig
from engine.launch import EMBEDDED_VOICE
from engine.models.base import TalkerInputs
from engine.models.qwen3_tts.load import load_model, quantize_talker
from engine.models.qwen3_tts.model import Qwen3TTS
from engine.models.qwen3_tts.prompt import NO_TOKEN, QwenSequence
from engine.models.qwen3_tts.talker import Talker
from engine.ops.params import PagedCall, ResidualStream
from engine.ops.reference_ops import ReferenceOps, select_ops
from engine.ops.stack import PagedStack, run_layers
from engine.weights.quantize import FP8, QuantizedLinear, Weight, quantize

BLOCK = 16
# Above this activations are rounded, too.
MAX_WEIGHT_ONLY_ROWS = 2
# Precision of weights, rows at a time, and precision of keys and values.
VARIANTS = (
    ("bf16", 512, "bf16"), ("bf16", 512, "fp8"), ("fp8", 2, "fp8"), ("fp8", 64, "bf16"), ("fp8", 64, "fp8"),
    ("fp8", 512, "fp8"), ("int4", 64, "bf16"),
)  # fmt: skip
NUM_RANDOM, RANDOM_LENGTH = 8, 128
DTYPE = torch.bfloat16


class RoundedRowsOps(ReferenceOps):
    """The values that ``QuantizedTritonOps`` multiplies above two rows, by plain operations."""

    def add_rms_norm(self, residual: ResidualStream, weight: Tensor, eps: float) -> Tensor:
        return rounded(super().add_rms_norm(residual, weight, eps))

    def add_linear(self, residual: ResidualStream, y: Tensor, weight: Weight) -> None:
        super().add_linear(residual, rounded(y), weight)


def rounded(x: Tensor) -> Tensor:
    return quantize(x).dequantize(x.dtype)


class Positions(NamedTuple):
    """Talker positions of some sequences, one after the other.

    ``text`` [N] ids, ``frames`` [N, K] codes and ``codec`` [N] ids, or -1; ``place`` [N] in the sequence ``owner`` [N].
    ``sampled`` [S] are those whose output is sampled, ``codes`` [S, K] what was sampled there; -1 at the end.
    """

    text: Tensor
    codec: Tensor
    frames: Tensor
    place: Tensor
    owner: Tensor
    sampled: Tensor
    codes: Tensor


class Outputs(NamedTuple):
    """``states`` [layers + 1, N, H], the last one normed; logits of code 0 [S, V], and of the others [F, K - 1, V]."""

    states: Tensor
    code0: Tensor
    others: Tensor


def force_replies(model: Qwen3TTS, texts: Sequence[str], replies: Replies) -> Positions:
    """The positions of these texts with these frames."""
    num_codes = model.codes_per_step
    none = [-1] * num_codes
    parts: dict[str, list[Any]] = {name: [] for name in Positions._fields}
    for number, (text, frames) in enumerate(zip(texts, replies.frames, strict=False)):
        row = model.new_sequence(make_request(number, text), seed=0)
        tokens = model.tokenizer.incremental()
        row.text.ids += [*tokens.push(text), *tokens.finish()]
        row.text.closed = True
        start, left = len(parts["text"]), deque(frames.tolist())
        for last in sampled_positions(model, row):
            parts["sampled"].append(start + last)
            parts["codes"].append(left[0] if left else none)
            if not left:
                break
            model.force(row, left.popleft())
        parts["text"] += [item.text for item in row.inputs]
        parts["codec"] += [item.codec for item in row.inputs]
        parts["frames"] += [list(row.frame_of(item)) if item.holds_frame else none for item in row.inputs]
        parts["place"] += range(len(row.inputs))
        parts["owner"] += [number] * len(row.inputs)
    return Positions(**{name: torch.tensor(values, device=model.device) for name, values in parts.items()})


def sampled_positions(model: Qwen3TTS, row: QwenSequence) -> Iterator[int]:
    """Feed the row; yield the number of each input whose output is to be sampled."""
    while isinstance(found := model.next_input(row), TalkerInputs):
        row.inputs += found.inputs
        if found.sample:
            yield len(row.inputs) - 1


def random_positions(talker: Talker) -> Positions:
    assert talker.text_table is not None
    torch.manual_seed(1)
    device, config = talker.text_table.device, talker.config
    size = NUM_RANDOM * RANDOM_LENGTH
    places = torch.arange(size, device=device)
    frames = torch.randint(config.code_predictor.vocab_size, (2, size, config.num_code_groups), device=device)
    text = torch.randint(len(talker.text_table), (size,), device=device)
    nothing = torch.full_like(text, NO_TOKEN)
    owner, place = places // RANDOM_LENGTH, places % RANDOM_LENGTH
    return Positions(text, nothing, frames[0], place, owner, places, frames[1])


def embed(talker: Talker, given: Positions) -> Tensor:
    x = talker.embed_text(given.text)
    has_codec, has_frame = given.codec != NO_TOKEN, given.frames[:, 0] >= 0
    x[has_codec] += talker.embed_codec(given.codec[has_codec])
    x[has_frame] += talker.embed_frame(given.frames[has_frame])
    return x


def new_cache(talker: Talker, given: Positions, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Keys and values for all sequences, and the block table of each position."""
    stack, like = talker.config.transformer, talker.codec_head.weight
    width = int(given.place.max()) // BLOCK + 1
    tables = torch.arange((int(given.owner.max()) + 1) * width, device=like.device, dtype=torch.int32).view(-1, width)
    shape = (stack.num_hidden_layers, 2, tables.numel(), BLOCK, stack.num_key_value_heads, stack.head_dim)
    return like.new_zeros(shape, dtype=dtype), tables[given.owner]


@torch.inference_mode()
def run(
    talker: Talker, ops: ReferenceOps, given: Positions, rows: int, cache_dtype: torch.dtype | None = None
) -> Outputs:
    """Run the stack over all positions, ``rows`` at a time, and the heads."""
    cache, tables = new_cache(talker, given, cache_dtype or talker.codec_head.weight.dtype)
    stack = PagedStack(ops, talker.model, cache, tables.shape[1] * BLOCK)
    x, eps, place = embed(talker, given), stack.norm.eps, given.place.int()
    states = x.new_empty(len(stack.layers) + 1, *x.shape)
    for start in range(0, len(x), rows):
        part = slice(start, start + rows)
        residual = ResidualStream(x[part].clone())
        call = PagedCall(tables[part].contiguous(), place[part].contiguous(), stack.rope, together=True)
        for index, layer in enumerate(stack.layers):
            attend = partial(attend_layer, stack, call, index)
            run_layers(ops, [layer], residual, eps, attend)
            states[index, part] = ops.flush_residual(residual)
        states[-1, part] = ops.rms_norm(residual.x, stack.norm.weight, eps)
    hidden, is_frame = states[-1, given.sampled], given.codes[:, 0] >= 0
    codes = given.codes[is_frame]
    others = talker.code_predictor.teacher_logits(hidden[is_frame], talker.embed_codec(codes[:, 0]), codes[:, 1:])
    return Outputs(states, talker.codec_head(hidden), others)


def attend_layer(stack: PagedStack, call: PagedCall, index: int, _: int, qkv: Tensor) -> Tensor:
    return stack.ops.paged_attention(qkv, stack.layers[index].qk_norms, stack.norm.eps, stack.cache[index], call)


def relative_error(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


def divergence(found: Tensor, wanted: Tensor) -> dict[str, float]:
    """Of logits [..., V]: mean and 99th percentile over positions, and how often the likeliest id is the same."""
    p, q = (F.log_softmax(logits.double().flatten(0, -2), -1) for logits in (wanted, found))
    values = (p.exp() * (p - q)).sum(-1)
    same = (found.argmax(-1) == wanted.argmax(-1)).double().mean()
    high = values.sort().values[int(0.99 * (len(values) - 1))]
    return {"mean": float(values.mean()), "p99": float(high), "same": float(same)}


def end_change(found: Tensor, wanted: Tensor, given: Positions, eos: int) -> float:
    """Mean change of the logarithm of the probability to end, where the reply ended."""
    ends = given.codes[:, 0] < 0
    p, q = (F.log_softmax(logits[ends].double(), -1)[:, eos] for logits in (wanted, found))
    return float((q - p).mean())


def measure(reference: Talker, make: Callable[[str], Talker], given: Positions) -> list[dict[str, Any]]:
    device, eos = reference.codec_head.weight.device, reference.config.control.eos
    wanted, found = run(reference, ReferenceOps(), given, 512), []
    for precision, rows, cache in VARIANTS:
        talker = make(precision)
        if precision == "fp8" and rows <= MAX_WEIGHT_ONLY_ROWS:
            use_quantized(talker)
        outputs = run(talker, choose_ops(precision, rows, device), given, rows, FP8 if cache == "fp8" else DTYPE)
        errors = [round(relative_error(*pair), 5) for pair in zip(outputs.states, wanted.states, strict=True)]
        row = {"precision": precision, "rows": rows, "cache": cache, "states": errors}
        row |= {"code0": divergence(outputs.code0, wanted.code0), "others": divergence(outputs.others, wanted.others)}
        if (given.codes[:, 0] < 0).any():
            row["end"] = end_change(outputs.code0, wanted.code0, given, eos)
        print(json.dumps(row), flush=True)
        found.append(row)
    return found


def use_quantized(talker: Talker) -> None:
    """Multiply fp8 weights in the predictor, too, as for one or two rows."""
    for module in talker.modules():
        if isinstance(module, QuantizedLinear):
            module.weight = module.weight._replace(plain=None)


def choose_ops(precision: str, rows: int, device: torch.device) -> ReferenceOps:
    if device.type != "cuda" and precision == "fp8" and rows > MAX_WEIGHT_ONLY_ROWS:
        return RoundedRowsOps()
    return select_ops(EngineConfig(precision=precision), device)


def measure_embedded(args: argparse.Namespace, device: torch.device) -> list[dict[str, Any]]:
    def load(precision: str, dtype: torch.dtype = DTYPE) -> Qwen3TTS:
        return load_model(EMBEDDED_VOICE, dtype, device, precision)

    texts, replies = args.texts.read_text(encoding="utf-8").splitlines()[: args.num], Replies.load(args.replies)
    reference = load("bf16", torch.float32)
    given = force_replies(reference, texts, replies)
    return measure(reference.talker, lambda precision: load(precision).talker, given)


def measure_random(args: argparse.Namespace, device: torch.device) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        talker = random_model.build(Path(folder), args.shape, DTYPE, device)[0].talker

    def make(precision: str) -> Talker:
        made = copy.deepcopy(talker)
        if precision != "bf16":
            quantize_talker(made, precision, device)
        return made

    return measure(as_fp32(talker), make, random_positions(talker))


def as_fp32(talker: Talker) -> Talker:
    """A copy in fp32."""
    return copy.deepcopy(talker).float()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--shape", choices=list(random_model.SHAPES), help="random weights instead of the embedded voice"
    )
    parser.add_argument("--replies", type=Path)
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--num", type=int, default=64, help="replies")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    device = torch.device(args.device)
    rows = (measure_random if args.shape else measure_embedded)(args, device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    settings = {"shape": args.shape or "embedded", "device": name, "torch": torch.__version__}
    print(json.dumps({"benchmark": "precision_divergence", **settings, "rows": rows}))


if __name__ == "__main__":
    main()
