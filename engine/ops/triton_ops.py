"""The graphs' operations as Triton kernels; what a kernel does not take goes to the plain reference.

Each can be turned off by name (``disabled_kernels`` of the engine's settings). Launch shapes are chosen by rule, from
measurements on one H200 (docs/design/gpu.md): nothing is tuned at start.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any

import torch
import triton
from torch import Tensor

from engine.ops import KERNELS
from engine.ops.gluon_kernels import import_gluon_kernel, num_multiprocessors
from engine.ops.launched_predictor import LaunchedPredictor, fits, import_kernel
from engine.ops.parallel_compile import is_compile_only, launch
from engine.ops.params import (
    ConvParams,
    FirstCodeRules,
    PaddedBufferPlan,
    PagedCall,
    ResidualStream,
    ResidualUnitParams,
    RingCall,
    SamplingTensors,
    SnakeParams,
)
from engine.ops.predictor import PredictorPasses, PredictorWeights
from engine.ops.ras import NUCLEUS, WHOLE, ControlRules, RasTensors
from engine.ops.reference_ops import ReferenceOps
from engine.ops.tiles import (
    NUM_MULTIPROCESSORS,
    RESIDENT_ROWS,
    RESIDENT_WARPS,
    conv_shape,
    takes_resident_unit,
    unit_parts,
    unit_shape,
)
from engine.ops.triton_attention import (
    kv_write_kernel,
    paged_attention_kernel,
    predictor_attention_kernel,
    ring_attention_kernel,
)
from engine.ops.triton_codec import (
    conv_kernel,
    conv_state_kernel,
    depthwise_norm_kernel,
    output_conv_kernel,
    residual_unit_kernel,
)
from engine.ops.triton_early import EARLY_END, EARLY_START, can_start_early, is_hopper
from engine.ops.triton_linear import gemm_kernel, gemv_kernel, norm_kernel, num_pieces, sum_norm_kernel, swiglu_kernel
from engine.ops.triton_sampling import sample_kernel, speech_sample_kernel
from engine.weights.quantize import FP8, Weight

# Above this weights are shared by rows that are multiplied together.
MAX_GEMV_ROWS = 2
# Above this cuBLAS wins, and what stands around a product stands alone.
MAX_GEMM_ROWS = 64
GEMM_ROWS, GEMM_COLUMNS, GEMM_DEPTH = 64, 32, 64
# Columns, depth and stages of products: those that are shared out along their depth, those with SwiGLU, all others.
GEMM_ADD, GEMM_SWIGLU, GEMM_PLAIN = (GEMM_COLUMNS, GEMM_DEPTH, 6), (32, 128, 3), (16, 64, 8)
MIN_GEMM_PROGRAMS, MAX_PART = 128, 2048
MIN_PAST_TILE = 4
# Positions at a time, warps, stages: where programs share a multiprocessor, and where each has its own.
PAGED, PAGED_FP8, PAGED_SINGLE_ROW = (64, 4, 3), (32, 1, 5), (128, 8, 2)
GEMV_COLUMNS = 8
GEMV_DEPTHS = (512, 256)
MIN_DEPTH = 128
# Pieces of each row of weights that are fetched before the inputs are there.
GEMV_AHEAD, GEMM_AHEAD = 16, 4
# Of a depth that none of them divides.
MAX_GEMV_PADDING = 1.15


def power_of_two(size: int) -> int:
    return triton.next_power_of_2(size)


def gemv_depth(size: int) -> int:
    """How many inputs a program of ``gemv`` reads at a time: many small reads are slower than some padding."""
    largest = GEMV_DEPTHS[0]
    padded = largest if triton.cdiv(size, largest) * largest <= MAX_GEMV_PADDING * size else MIN_DEPTH
    return next((depth for depth in GEMV_DEPTHS if size % depth == 0), padded)


def gemm_split_k(size: int, num_out: int) -> int:
    """In how many parts a product's depth is shared out, so that no multiprocessor is idle and none is long at it."""
    parts = 1
    while size % (2 * parts * GEMM_DEPTH) == 0:
        if parts * num_out // GEMM_COLUMNS >= MIN_GEMM_PROGRAMS and size // parts <= MAX_PART:
            break
        parts *= 2
    return parts


class TritonOps(ReferenceOps):
    """``off`` names kernels to leave to the reference."""

    def __init__(self, disabled: Collection[str] = ()) -> None:
        self.on = set(KERNELS) - set(disabled)
        self.max_gemv_rows, self.max_gemm_rows = MAX_GEMV_ROWS, MAX_GEMM_ROWS
        self.on_hopper = is_hopper()
        self.starts_early = "early" in self.on and can_start_early()

    def early(self, rows: int) -> dict[str, int]:
        """Options of a launch for ``rows`` rows: with more, programs that wait hold back those of the other stream."""
        return EARLY_START if self.starts_early and rows <= self.max_gemv_rows else {}

    def early_layer(self, rows: int) -> dict[str, int]:
        """Options for a layer's kernels: with more rows each lets the next one start late, so that little waits.

        In the codec's layers each frame of a call is a row.
        """
        return self.early(rows) or (EARLY_END if self.starts_early and rows <= self.max_gemm_rows else {})

    def early_product(self, rows: int, row_bytes: int, ahead: int) -> dict[str, int]:
        """Options for a product that reads ``row_bytes`` of each row of its weights."""
        early = self.early_layer(rows)
        return early | {"PREFETCH": num_pieces(row_bytes, ahead)} if early else early

    # -- products ------------------------------------------------------------------------------------------------

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        if "norm" not in self.on or not x.is_contiguous():
            return super().rms_norm(x, weight, eps)
        out = torch.empty_like(x)
        size = x.shape[-1]
        block = power_of_two(size)
        warps = 4 if block <= 2048 else 8
        rows = x.numel() // size
        launch(norm_kernel, rows)(
            x, weight, out, eps, H=size, BLOCK=block, num_warps=warps, **self.early_layer(rows)
        )  # fmt: skip
        return out

    def swiglu(self, gate_up: Tensor) -> Tensor:
        if "swiglu" not in self.on:
            return super().swiglu(gate_up)
        width = gate_up.shape[-1] // 2
        out = gate_up.new_empty(*gate_up.shape[:-1], width)
        launch(swiglu_kernel, out.numel() // width, triton.cdiv(width, 1024))(gate_up, out, width, BLOCK=1024)
        return out

    def fits_gemv(self, rows: int, size: int, num_out: int) -> bool:
        few = "gemv" in self.on and rows <= self.max_gemv_rows
        return few and size % MIN_DEPTH == 0 and num_out % GEMV_COLUMNS == 0

    def fits_gemm(self, rows: int, size: int, num_out: int) -> bool:
        few = "gemm" in self.on and rows <= self.max_gemm_rows
        return few and size % GEMM_DEPTH == 0 and num_out % GEMM_COLUMNS == 0

    def launch_gemv(
        self, x: Tensor, weight: Weight, out: Tensor, norm: Tensor | None, eps: float, swiglu: bool, add: bool,
        scale: Tensor | None = None,
    ) -> None:  # fmt: skip
        assert isinstance(weight, Tensor)
        rows, size = x.shape
        num_out = out.shape[-1]
        depth = gemv_depth(size)
        early = self.early_product(rows, size * weight.element_size(), GEMV_AHEAD)
        launch(gemv_kernel, num_out // GEMV_COLUMNS * rows)(
            x, weight, x if scale is None else scale, x if norm is None else norm, out, eps, num_out, size,
            ROWS=rows, NORM=norm is not None, SWIGLU=swiglu, ADD=add, SCALE=scale is not None, EVEN=size % depth == 0,
            BLOCK_N=GEMV_COLUMNS, BLOCK_K=depth, STAGES=4, num_warps=4, **early,
        )  # fmt: skip

    def launch_gemm(self, x: Tensor, weight: Weight, out: Tensor, num_parts: int, swiglu: bool) -> None:
        assert isinstance(weight, Tensor)
        rows, size = x.shape
        num_out = out.shape[-1]
        columns, depth, stages = GEMM_SWIGLU if swiglu else GEMM_ADD if num_parts > 1 else GEMM_PLAIN
        if size % depth:
            columns, depth, stages = GEMM_ADD
        early = self.early_product(rows, size // num_parts * weight.element_size(), GEMM_AHEAD)
        launch(gemm_kernel, num_out // columns * num_parts, triton.cdiv(rows, GEMM_ROWS))(
            x, weight, x, x, out, rows, num_out, size, SWIGLU=swiglu, PARTS=num_parts, EXACT=x.dtype == torch.float32,
            SCALED=False, BLOCK_M=GEMM_ROWS, BLOCK_N=columns, BLOCK_K=depth, num_warps=4, num_stages=stages, **early,
        )  # fmt: skip

    def add_rms_norm(self, residual: ResidualStream, weight: Tensor, eps: float) -> Tensor:
        x, parts = residual.x, residual.parts
        if parts is None or "norm" not in self.on:
            return self.rms_norm(self.flush_residual(residual), weight, eps)
        residual.parts = None
        out = torch.empty_like(x)
        rows, size = x.shape
        block = power_of_two(size)
        launch(sum_norm_kernel, rows)(
            x, parts, weight, out, rows, eps, H=size, PARTS=parts.shape[0], BLOCK=block,
            num_warps=8 if block < 1024 else 16, **self.early_layer(rows),
        )  # fmt: skip
        return out

    def flush_residual(self, residual: ResidualStream) -> Tensor:
        if residual.parts is not None:
            residual.x.copy_(residual.x + residual.parts.sum(0))
            residual.parts = None
        return residual.x

    def operand(self, weight: Weight, rows: int, dtype: torch.dtype) -> Weight:
        """The weight as ``launch_gemv`` and ``launch_gemm`` multiply it."""
        return self.dense(weight, dtype)

    def num_parts(self, size: int, num_out: int, weight: Weight) -> int:
        """In how many parts ``launch_gemm`` shares out a product that is added to the residual stream."""
        return gemm_split_k(size, num_out)

    def norm_linear(
        self, residual: ResidualStream, norm_weight: Tensor, eps: float, weight: Weight, bias: Tensor | None = None
    ) -> Tensor:
        (rows, size), num_out = residual.x.shape, weight.shape[0]
        weight = self.operand(weight, rows, residual.x.dtype)
        is_gemv = self.fits_gemv(rows, size, num_out)
        # In bf16 a product of cuBLAS takes as long, but does not start early.
        is_early = bool(self.early_layer(rows)) and residual.x.dtype != torch.float32
        is_gemm = is_early and self.fits_gemm(rows, size, num_out)
        if not is_gemv and not is_gemm:
            return super().norm_linear(residual, norm_weight, eps, weight, bias)
        out = residual.x.new_empty(rows, num_out)
        if is_gemv:
            self.launch_gemv(self.flush_residual(residual), weight, out, norm_weight, eps, swiglu=False, add=False)
        else:
            self.launch_gemm(self.add_rms_norm(residual, norm_weight, eps), weight, out, 1, swiglu=False)
        return out if bias is None else out + bias

    def norm_swiglu(self, residual: ResidualStream, norm_weight: Tensor, eps: float, weight: Weight) -> Tensor:
        (rows, size), num_out = residual.x.shape, weight.shape[0] // 2
        weight = self.operand(weight, rows, residual.x.dtype)
        is_gemv, is_gemm = self.fits_gemv(rows, size, num_out), self.fits_gemm(rows, size, num_out)
        if not is_gemv and not is_gemm:
            return super().norm_swiglu(residual, norm_weight, eps, weight)
        out = residual.x.new_empty(rows, num_out)
        if is_gemv:
            self.launch_gemv(self.flush_residual(residual), weight, out, norm_weight, eps, swiglu=True, add=False)
        else:
            self.launch_gemm(self.add_rms_norm(residual, norm_weight, eps), weight, out, 1, swiglu=True)
        return out

    def add_linear(self, residual: ResidualStream, y: Tensor, weight: Weight) -> None:
        (rows, size), num_out = y.shape, weight.shape[0]
        weight = self.operand(weight, rows, y.dtype)
        x = self.flush_residual(residual)
        if self.fits_gemv(rows, size, num_out):
            self.launch_gemv(y, weight, x, None, 0.0, swiglu=False, add=True)
        elif self.fits_gemm(rows, size, num_out):
            num_parts = self.num_parts(size, num_out, weight)
            residual.parts = torch.empty(num_parts, rows, num_out, dtype=torch.float32, device=x.device)
            self.launch_gemm(y, weight, residual.parts, num_parts, swiglu=False)
        else:
            super().add_linear(residual, y, weight)

    # -- attention -----------------------------------------------------------------------------------------------

    def paged_attention(
        self, qkv: Tensor, norms: tuple[Tensor, Tensor] | None, eps: float, cache: Tensor, call: PagedCall
    ) -> Tensor:
        _, _, page, heads, size = cache.shape
        # A matrix product takes 16 channels at least, and fp8 is read as two halves.
        if "paged" not in self.on or size < (32 if cache.dtype == FP8 else 16):
            return super().paged_attention(qkv, norms, eps, cache, call)
        tables, positions, rope, together = call
        rows = qkv.shape[0]
        group = qkv.shape[1] // size // heads - 2
        out = qkv.new_empty(rows, heads * group * size)
        many = PAGED_FP8 if cache.dtype == FP8 else PAGED
        block, warps, stages = PAGED_SINGLE_ROW if rows * heads <= NUM_MULTIPROCESSORS else many
        shape = dict(HEADS=heads, GROUP=group, D=size, PAGE=page, NORM=norms is not None)
        norms = norms or (qkv, qkv)
        if together:
            launch(kv_write_kernel, rows, heads)(
                qkv, norms[1], *rope, cache, tables, positions, eps, cache.stride(0), tables.stride(0),
                **shape, num_warps=1, **self.early_layer(rows),
            )  # fmt: skip
        launch(paged_attention_kernel, heads, rows)(
            qkv, *norms, *rope, cache, tables, positions, out, eps, size**-0.5, cache.stride(0), tables.stride(0),
            **shape, BLOCK=block, WRITE=not together, EXACT=qkv.dtype == torch.float32, FP8=cache.dtype == FP8,
            num_warps=warps, num_stages=stages, **self.early_layer(rows),
        )  # fmt: skip
        return out

    def predictor_passes(self, weights: PredictorWeights) -> PredictorPasses:
        kernel = import_kernel() if "predictor" in self.on and self.on_hopper and fits(weights) else None
        return super().predictor_passes(weights) if kernel is None else LaunchedPredictor(self, weights, kernel)

    def predictor_pass(
        self, launched: LaunchedPredictor, inputs: Sequence[Tensor], cache: Tensor, start: int, codebook: int
    ) -> Tensor:
        """Return the logits [N, V] after the one or two positions of a launch; benchmarks record it here."""
        return launched.launch_positions(inputs, cache, start, codebook)

    def predictor_attention(
        self,
        qkv: Tensor,
        norms: tuple[Tensor, Tensor],
        eps: float,
        rope: tuple[Tensor, Tensor],
        cache: Tensor,
        start: int,
        num_tokens: int,
    ) -> Tensor:
        _, rows, length, heads, size = cache.shape
        if "frame" not in self.on or size < 16:
            return super().predictor_attention(qkv, norms, eps, rope, cache, start, num_tokens)
        group = qkv.shape[1] // size // heads - 2
        out = qkv.new_empty(rows * num_tokens, heads * group * size)
        launch(predictor_attention_kernel, rows, heads)(
            qkv, *norms, *rope, cache, out, eps, size**-0.5, cache.stride(0), start,
            HEADS=heads, GROUP=group, D=size, LENGTH=length, TOKENS=num_tokens,
            PAST=max(MIN_PAST_TILE, power_of_two(start)) if start else 0, num_warps=1, **self.early_layer(rows),
        )  # fmt: skip
        return out

    def ring_attention(self, qkv: Tensor, ring: Tensor, call: RingCall) -> Tensor:
        _, _, length, heads, size = ring.shape
        slots, first, rope, num_tokens, window = call
        if "ring" not in self.on or size < 16 or qkv.shape[1] != 3 * heads * size:
            return super().ring_attention(qkv, ring, call)
        out = qkv.new_empty(qkv.shape[0], heads * size)
        launch(ring_attention_kernel, heads, slots.shape[0])(
            qkv, *rope, ring, slots, first, out, size**-0.5, ring.stride(0), window, rope[0].shape[0],
            HEADS=heads, D=size, RING=length, BLOCK=max(16, power_of_two(length)), TOKENS=num_tokens,
            EXACT=qkv.dtype == torch.float32, num_warps=4, **self.early(slots.shape[0]),
        )  # fmt: skip
        return out

    # -- sampling ------------------------------------------------------------------------------------------------

    def launch_sample(
        self, logits: Tensor, settings: SamplingTensors, codebook: int, first: tuple[Tensor, ...] = (),
        num_codes: int = 0, eos: int = 0, table: Tensor | None = None, following: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        rows, width = logits.shape
        out = settings.seed.new_zeros(rows) if is_compile_only() else settings.seed.new_empty(rows)
        none = settings.seed
        seen, slots, penalty, forget, banned, finite = first or (none,) * 6
        size = 1 if table is None else table.shape[1]
        is_bf16 = logits.dtype == torch.bfloat16 and not first
        launch(sample_kernel, rows)(
            logits, settings.temperature, settings.top_k, settings.top_p, settings.seed, settings.place,
            settings.frame, codebook, out, seen, slots, penalty, forget, banned, finite, num_codes, eos,
            none if table is None else table, none if following is None else following, WIDTH=size,
            V=width, BLOCK=power_of_two(width), BITS=16 if is_bf16 else 32, FIRST=bool(first),
            NEXT=table is not None, WIDTH_BLOCK=power_of_two(size),
            num_warps=8, **(EARLY_START if self.early_layer(rows) else {}),
        )  # fmt: skip
        return out

    def sample(self, logits: Tensor, settings: SamplingTensors, codebook: int) -> Tensor:
        if "sample" not in self.on:
            return super().sample(logits, settings, codebook)
        return self.launch_sample(logits, settings, codebook)

    def sample_next(
        self, logits: Tensor, settings: SamplingTensors, codebook: int, table: Tensor
    ) -> tuple[Tensor, Tensor]:
        if "sample" not in self.on or table.shape[0] < logits.shape[1]:
            return super().sample_next(logits, settings, codebook, table)
        following = table.new_empty(logits.shape[0], table.shape[1])
        return self.launch_sample(logits, settings, codebook, table=table, following=following), following

    def sample_first(self, logits: Tensor, settings: SamplingTensors, rules: FirstCodeRules) -> tuple[Tensor, Tensor]:
        if "sample" not in self.on:
            return super().sample_first(logits, settings, rules)
        seen, slots, penalty, forget, banned, num_codes, eos = rules
        finite = torch.empty(logits.shape[0], dtype=torch.bool, device=logits.device)
        first = (seen.view(torch.int8), slots, penalty, forget, banned.view(torch.int8), finite.view(torch.int8))
        return self.launch_sample(logits, settings, 0, first, num_codes, eos), finite

    def sample_speech(
        self, logits: Tensor, control: ControlRules, rows: RasTensors, max_top_k: int, out: Tensor
    ) -> None:
        num_rows, width = logits.shape
        if "sample" not in self.on:
            super().sample_speech(logits, control, rows, max_top_k, out)
            return
        launch(speech_sample_kernel, num_rows)(
            logits, *(flags.view(torch.int8) for flags in control[:3]), *rows, out,
            control.num_codes, control.stop, control.fill, V=width, BLOCK=power_of_two(width),
            WINDOW=rows.history.shape[1], MERGE=control.merge, NUCLEUS=NUCLEUS, WHOLE=WHOLE, num_warps=16,
        )  # fmt: skip

    # -- the codec -----------------------------------------------------------------------------------------------

    def conv(
        self,
        x: Tensor,
        product: ConvParams,
        length: int,
        residual: Tensor | None = None,
        raw: Tensor | None = None,
        act: Tensor | None = None,
        waves: SnakeParams | None = None,
        gelu: bool = False,
    ) -> None:
        streams, _, channels = x.shape
        weight, bias, dilation = product
        taps, _, num_out = weight.shape
        if "conv" not in self.on or channels % 16:
            super().conv(x, product, length, residual, raw, act, waves, gelu)
            return
        block_k = next(size for size in (64, 32, 16) if channels % size == 0)
        rows = streams * length
        block_m, block_n, warps, stages = conv_shape(rows, num_out, taps, channels)
        frequency, gain = waves or (bias, bias)
        none = x
        launch(conv_kernel, triton.cdiv(num_out, block_n) * triton.cdiv(rows, block_m))(
            x, weight, bias, frequency, gain,
            none if residual is None else residual, none if raw is None else raw, none if act is None else act,
            rows, length, x.stride(0), *(0 if t is None else t.stride(0) for t in (residual, raw, act)), dilation,
            C=channels, TAPS=taps, N=num_out, RESIDUAL=residual is not None, RAW=raw is not None,
            ACT=0 if act is None else 3 if gelu else 2 if waves else 1, EXACT=x.dtype == torch.float32,
            EVEN_N=num_out % block_n == 0, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k,
            num_warps=warps, num_stages=stages, **self.early(streams),
        )  # fmt: skip

    def residual_unit(
        self, padded: Tensor, unit: ResidualUnitParams, x: Tensor, out: Tensor, waves: SnakeParams, is_last: bool
    ) -> None:
        streams, length, channels = x.shape
        rows, taps = streams * length, unit.wide.weight.shape[0]
        args = (
            padded, unit.wide.weight, unit.wide.bias, *unit.inner, unit.narrow.weight, unit.narrow.bias, *waves, x, out,
            rows, length, padded.stride(0), x.stride(0), out.stride(0), unit.wide.dilation,
        )  # fmt: skip
        tile = unit_shape(channels, self.on_hopper)
        too_wide = x.is_cuda and x.dtype == torch.float32
        if self._takes_resident_unit(padded, x, out, taps):
            launch(self.resident_unit, min(num_multiprocessors(x.device), triton.cdiv(rows, RESIDENT_ROWS)))(
                *args, TAPS=taps, LAST=is_last, num_warps=RESIDENT_WARPS
            )
        elif "unit" not in self.on or tile is None or too_wide or triton.cdiv(rows, tile.rows) < tile.min_programs:
            super().residual_unit(padded, unit, x, out, waves, is_last)
        else:
            launch(residual_unit_kernel, triton.cdiv(rows, tile.rows))(
                *args, taps, C=channels, LAST=is_last, EXACT=x.dtype == torch.float32,
                ONE_STREAM=length % tile.rows == 0, BLOCK_M=tile.rows, FIRST=unit_parts(channels)[0],
                BLOCK_K=tile.depth, BLOCK_N=tile.columns, num_warps=tile.warps, num_stages=tile.stages,
            )  # fmt: skip

    def _takes_resident_unit(self, padded: Tensor, x: Tensor, out: Tensor, taps: int) -> bool:
        """Return whether a unit over ``x`` is computed with its weights in shared memory."""
        if not self.on_hopper or x.dtype != torch.bfloat16 or not {"unit", "resident_unit"} <= self.on:
            return False
        streams, length, channels = x.shape
        has_whole_words = all(t.stride()[1:] == (channels, 1) and t.stride(0) % 8 == 0 for t in (padded, x, out))
        takes = has_whole_words and takes_resident_unit(streams * length, channels, taps)
        return takes and self.resident_unit is not None

    @cached_property
    def resident_unit(self) -> Any | None:
        return import_gluon_kernel("triton_unit", "resident_unit_kernel", "residual units load their weights each time")

    def depthwise_norm(
        self, x: Tensor, weight: Tensor, bias: Tensor, norm: tuple[Tensor, Tensor], eps: float
    ) -> Tensor:
        if "depthwise" not in self.on:
            return super().depthwise_norm(x, weight, bias, norm, eps)
        streams, padded, channels = x.shape
        length = padded - weight.shape[0] + 1
        out = x.new_empty(streams, length, channels)
        launch(depthwise_norm_kernel, streams * length)(
            x, weight, bias, *norm, out, length, x.stride(0), eps,
            C=channels, BLOCK=power_of_two(channels), TAPS=weight.shape[0], num_warps=4, **self.early(streams),
        )  # fmt: skip
        return out

    def output_conv(self, x: Tensor, weight: Tensor, bias: Tensor, pcm: Tensor) -> None:
        if "tail" not in self.on:
            super().output_conv(x, weight, bias, pcm)
            return
        streams, length = pcm.shape
        channels = x.shape[2]
        launch(output_conv_kernel, triton.cdiv(streams * length, 64))(
            x, weight, bias, pcm, streams * length, length, x.stride(0), pcm.stride(0),
            C=channels, BLOCK_C=power_of_two(channels), TAPS=weight.shape[0], BLOCK=64, num_warps=4,
            **self.early(streams),
        )  # fmt: skip

    def load_conv_state(self, pads: PaddedBufferPlan, state: Tensor, slots: Tensor, fresh: Tensor) -> None:
        if "pasts" not in self.on:
            super().load_conv_state(pads, state, slots, fresh)
        else:
            self.launch_conv_state(pads, state, slots, fresh, load=True)

    def store_conv_state(self, pads: PaddedBufferPlan, state: Tensor, slots: Tensor) -> None:
        if "pasts" not in self.on:
            super().store_conv_state(pads, state, slots)
        else:
            self.launch_conv_state(pads, state, slots, slots, load=False)

    def launch_conv_state(
        self, pads: PaddedBufferPlan, state: Tensor, slots: Tensor, fresh: Tensor, load: bool
    ) -> None:
        launch(conv_state_kernel, pads.chunks.shape[0], slots.shape[0])(
            state, pads.flat, pads.chunks, slots, fresh.view(torch.int8) if load else fresh, state.stride(0),
            LOAD=load, BLOCK=PaddedBufferPlan.CHUNK, STEP=pads.step, num_warps=4, **self.early(slots.shape[0]),
        )  # fmt: skip
