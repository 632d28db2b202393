"""Passes of the code predictor of few rows: one launch for each position, or for a frame's first two."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from engine.ops.gluon_kernels import import_gluon_kernel, num_multiprocessors
from engine.ops.parallel_compile import KernelNotCached, is_compile_only, launch
from engine.ops.predictor import PredictorPasses, PredictorWeights
from engine.ops.stack import StackLayer
from engine.weights.quantize import QuantizedWeight, Weight, dense

if TYPE_CHECKING:
    from engine.ops.triton_ops import TritonOps

log = logging.getLogger(__name__)

MAX_ROWS = 8
# Each has a multiprocessor, and waits for all others.
NUM_PROGRAMS = 128
# The released shape, which the kernel's chunks of weights are made for. Positions are even in number.
HIDDEN, NUM_HEADS, NUM_KV_HEADS, HEAD_SIZE, VOCAB, NUM_POSITIONS = 1024, 16, 8, 128, 2048, 16
# Shared memory has room for their scales in fp8.
MAX_LAYERS = 8
# Bytes; the kernel reads whole vectors.
ALIGNMENT = 16
ANGLES = (NUM_POSITIONS, HEAD_SIZE // 2)
NUM_QKV, NUM_INNER = (NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_SIZE, 3 * HIDDEN
# Products of a layer [outputs, inputs], in the order of the kernel's arguments.
PRODUCTS = {
    "qkv": (NUM_QKV, HIDDEN), "out": (HIDDEN, NUM_HEADS * HEAD_SIZE),
    "gate_up": (2 * NUM_INNER, HIDDEN), "down": (HIDDEN, NUM_INNER),
}  # fmt: skip


def import_kernel() -> Any | None:
    """Import the kernel, if there is one with this Triton."""
    otherwise = "predictor passes take a launch for each operation"
    return import_gluon_kernel("triton_predictor", "predictor_pass_kernel", otherwise)


def bf16_tensor(weight: Weight) -> Tensor | None:
    """The weight if it is there in bf16, as the kernel reads it."""
    tensor = weight.plain if isinstance(weight, QuantizedWeight) else weight
    if not isinstance(tensor, Tensor) or tensor.dtype != torch.bfloat16:
        return None
    return tensor if tensor.is_contiguous() and tensor.data_ptr() % ALIGNMENT == 0 else None


def fits(weights: PredictorWeights) -> bool:
    """Return whether the kernel takes these weights, on a GPU with enough multiprocessors."""
    if not weights.norm.is_cuda or not has_released_shape(weights):
        return False
    return num_multiprocessors(weights.norm.device) >= NUM_PROGRAMS


def fp8_products(weights: PredictorWeights) -> list[list[QuantizedWeight]]:
    """The products of each layer if all are in fp8, as the kernel then reads them; else none."""
    products = [
        [weight for weight in products_of(layer) if isinstance(weight, QuantizedWeight)] for layer in weights.layers
    ]
    return products if all(len(some) == len(PRODUCTS) for some in products) else []


def products_of(layer: StackLayer) -> list[Weight]:
    return [getattr(layer, name) for name in PRODUCTS]


def has_released_shape(weights: PredictorWeights) -> bool:
    """Return whether all weights have the released sizes, and are in bf16 but for products of layers in fp8."""
    is_fp8 = bool(fp8_products(weights))

    def has_shape(weight: Weight, *shape: int) -> bool:
        tensor = bf16_tensor(weight)
        return tensor is not None and tensor.shape == shape

    def fits_layer(layer: StackLayer) -> bool:
        if layer.qkv_bias is not None or layer.qk_norms is None:
            return False
        products = zip(products_of(layer), PRODUCTS.values(), strict=True)
        return (
            has_shape(layer.norm, HIDDEN)
            and has_shape(layer.after, HIDDEN)
            and all(has_shape(norm, HEAD_SIZE) for norm in layer.qk_norms)
            and all(weight.shape == shape if is_fp8 else has_shape(weight, *shape) for weight, shape in products)
        )

    def fits_rope(table: Tensor) -> bool:
        return table.dtype == torch.float32 and table.is_contiguous() and table.shape == ANGLES

    return (
        len(weights.layers) <= MAX_LAYERS
        and all(map(fits_rope, weights.rope))
        and has_shape(weights.norm, HIDDEN)
        and all(has_shape(head, VOCAB, HIDDEN) for head in weights.heads)
        and all(map(fits_layer, weights.layers))
    )


def takes_two_positions(num_rows: int) -> bool:
    """Return whether one launch computes the first two positions of this number of rows."""
    return 2 * num_rows <= MAX_ROWS


class LaunchedPredictor(PredictorPasses):
    """Runs a position of at most ``MAX_ROWS`` rows in one launch, and the first two of half as many; more rows, or all
    where that does not work, as ``PredictorPasses``.

    The programs of a launch wait for words that others store. A launch has a line of words for each row and position.
    Two sets of words take turns: a launch with an even last position uses the first, others the second. It finds its
    lines empty and empties those of the other set. This holds since ``begin`` empties the set of a frame's first
    launch, and no launch has more lines than the one before. So a frame does not depend on how the last one ended.
    The first call of half as many rows has two inputs.

    A program that waits too long sets ``failed``: the frame's codes are then not valid. The layers' weights are copied,
    157 MB in bf16, 79 MB in fp8.
    """

    def __init__(self, ops: TritonOps, weights: PredictorWeights, kernel: Any) -> None:
        from engine.ops.triton_exchange import COPIES, EMPTY, PIECE, PIECES

        super().__init__(ops, weights)
        self.kernel, self.empty, device = kernel, EMPTY.value, weights.norm.device
        layers = weights.layers
        self._copy_weights()
        norms = [(layer.norm, *(layer.qk_norms or ()), layer.after) for layer in layers]
        self.norms = torch.tensor([[norm.data_ptr() for norm in row] for row in norms], device=device)
        num_words = MAX_ROWS * NUM_QKV // 2 + COPIES.value * PIECES.value * PIECE.value
        self.words = torch.full((2, len(layers) * num_words), self.empty, dtype=torch.int32, device=device)
        self.failed = torch.zeros(1, dtype=torch.int32, device=device)
        # Unknown until a launch was tried.
        self._works: bool | None = None
        self._is_listed = False

    def _copy_weights(self) -> None:
        """Copy the layers' products, and describe them and the heads to the kernel."""
        from engine.ops.triton_predictor_weights import describe_weight, join_scales, pack_fp8

        weights, quantized = self.weights, fp8_products(self.weights)
        self.scales = join_scales([[weight.scale for weight in some] for some in quantized]) if quantized else None
        element = torch.int16 if quantized else torch.int32

        def packed(weight: Weight) -> Tensor:
            if quantized and isinstance(weight, QuantizedWeight):
                return pack_fp8(weight.data)
            return dense(weight, torch.bfloat16)

        # One product at a time: packed weights of all four would take as much memory again.
        self.products = [
            describe_weight(torch.cat([packed(weight) for weight in some]), element)
            for some in zip(*map(products_of, weights.layers), strict=True)
        ]
        self.heads = [describe_weight(dense(head, torch.bfloat16), element) for head in weights.heads]

    def begin(self, num_rows: int) -> None:
        if num_rows <= MAX_ROWS:
            first_set = self.words[1 if takes_two_positions(num_rows) else 0]
            first_set.fill_(self.empty)
            self.failed.zero_()

    def run(self, inputs: Sequence[Tensor], cache: Tensor, start: int, codebook: int) -> Tensor:
        if inputs[0].shape[0] > MAX_ROWS or not self.works:
            return super().run(inputs, cache, start, codebook)
        ops = cast("TritonOps", self.ops)
        if start == 0 and takes_two_positions(inputs[0].shape[0]):
            # A launch for position 0 alone would use the set that ``begin`` did not empty.
            assert len(inputs) == 2
            return ops.predictor_pass(self, inputs, cache, start, codebook)
        return [ops.predictor_pass(self, (x,), cache, i, codebook) for i, x in enumerate(inputs, start)][-1]

    @property
    def works(self) -> bool:
        """Return whether launches work: True until a call can try one. Graphs captured before keep their launches."""
        if self._works is None:
            if is_compile_only():
                self._list_launches()
                return True
            if self.failed.is_cuda and torch.cuda.is_current_stream_capturing():
                return True
            self._works = self._try_launches()
            self._reset()
        return self._works

    def _reset(self) -> None:
        self.words.fill_(self.empty)
        self.failed.zero_()

    def _list_launches(self) -> None:
        """Launch once what is going to be tried: frames of 5 to 8 rows alone have no launch for two positions."""
        if not self._is_listed:
            self._launch_both()
            self._is_listed = True

    def _launch_both(self) -> None:
        """Launch both kernels: a frame's first launch, for two positions, and that of the next one."""
        x = self.weights.norm.new_zeros(1, HIDDEN)
        cache = x.new_zeros(len(self.weights.layers), 2, 1, NUM_POSITIONS, NUM_KV_HEADS, HEAD_SIZE)
        self.launch_positions((x, x), cache, 0, 1)
        self.launch_positions((x,), cache, 2, 2)

    def _try_launches(self) -> bool:
        """Return whether the launches of both kernels work."""
        self._reset()  # an earlier try may have ended between them
        try:
            self._launch_both()
            if not self.failed.item():
                return True
        except (KernelNotCached, torch.OutOfMemoryError):
            raise
        except Exception:  # a Triton that compiles it in another way, a device that does not run it
            log.warning("predictor passes take a launch for each operation", exc_info=True)
        else:
            log.warning("predictor passes take a launch for each operation: programs waited too long")
        return False

    def launch_positions(self, inputs: Sequence[Tensor], cache: Tensor, start: int, codebook: int) -> Tensor:
        """Return the logits [N, V] after the last of ``inputs``: one or two, [N, H] each, from ``start`` on."""
        x, *others = (x.contiguous() for x in inputs)
        second = others[0] if others else None
        num_rows, weights = x.shape[0], self.weights
        logits = x.new_empty(num_rows, VOCAB)
        launch(self.kernel, NUM_PROGRAMS)(
            *self.products, self.heads[codebook - 1], self.scales, x, second, self.norms, weights.norm,
            *weights.rope, cache, logits, self.words, self.failed, weights.eps, HEAD_SIZE**-0.5, start, num_rows,
            len(weights.layers),
            SIZE=HIDDEN, HEADS=NUM_HEADS, KV=NUM_KV_HEADS, D=HEAD_SIZE, VOCAB=VOCAB, LENGTH=NUM_POSITIONS,
            num_warps=8, launch_cooperative_grid=True,
        )  # fmt: skip
        return logits

    def write_status(self, finite: Tensor, out: Tensor) -> None:
        if finite.shape[0] > MAX_ROWS:
            super().write_status(finite, out)
        else:
            torch.add(finite, self.failed, alpha=-2, out=out)
