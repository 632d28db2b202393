"""The codec decoder for many slots over static buffers, channels last: [stream, position, channel].

The arithmetic of ``CodecDecoder`` with everything folded that has no bend between: projections into tables and
neighbouring products, layer scales and gamma into the product before them. Every convolution reads a padded buffer
whose head is its past, and writes what the next layer reads, activated, into that layer's buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.layers.streaming import CausalConv1d, CausalConvTranspose1d, Snake
from engine.models.qwen3_tts.codec_decoder import CodecState
from engine.ops.params import (
    ConvParams,
    ConvStateSpec,
    PaddedBuffer,
    PaddedBufferPlan,
    ResidualStream,
    ResidualUnitParams,
    RingCall,
    SnakeParams,
)
from engine.ops.reference_ops import ReferenceOps
from engine.ops.stack import StackLayer, rope_tables, run_layers

if TYPE_CHECKING:
    from engine.models.qwen3_tts.codec_decoder import CodecDecoder, CodecFront, ConvNeXtBlock

CALL_FRAMES = (1, 2, 4, 8)


class CodecBlockWeights(NamedTuple):
    rate: int
    upsample: ConvParams
    # Of what follows the upsampling, and of what follows each unit.
    outer: Sequence[SnakeParams]
    units: Sequence[ResidualUnitParams]


class UpsampleWeights(NamedTuple):
    upsample: ConvParams
    rate: int
    depthwise: ConvParams
    norm: tuple[Tensor, Tensor]
    wide: ConvParams
    back: ConvParams


def conv_product(layer: CausalConv1d, dtype: torch.dtype) -> ConvParams:
    return ConvParams.from_tensors(layer.conv.weight.permute(2, 1, 0), layer.conv.bias, dtype, layer.conv.dilation[0])


def transpose_product(layer: CausalConvTranspose1d, dtype: torch.dtype) -> ConvParams:
    """Inputs (one step earlier, now) to ``stride`` outputs side by side; kernel = stride has no earlier one."""
    taps = layer.conv.weight.unflatten(-1, (-1, layer.stride)).permute(2, 0, 3, 1).flip(0)
    return ConvParams.from_tensors(taps.flatten(2), layer.conv.bias.repeat(layer.stride), dtype)


def linear_product(linear: nn.Linear, dtype: torch.dtype) -> ConvParams:
    return ConvParams.from_tensors(linear.weight.t()[None], linear.bias, dtype)


def fuse_convs(first: ConvParams, second: ConvParams, dtype: torch.dtype) -> ConvParams:
    """``second`` (one tap) after ``first``, as one."""
    after = second.weight[0].float()
    return ConvParams.from_tensors(
        first.weight.float() @ after, first.bias @ after + second.bias, dtype, first.dilation
    )


def snake_params(snake: Snake, repeat: int = 1) -> SnakeParams:
    frequency, gain = snake.exponentials() if snake.gain is None else (snake.frequency, snake.gain)
    return SnakeParams(
        frequency[:, 0].float().repeat(repeat).contiguous(), gain[:, 0].float().repeat(repeat).contiguous()
    )


class DecodeBuffers:
    """Inputs and PCM of one call of a codec program: at most ``max_rows`` rows, or as many frames in fewer rows.

    ``sources`` and ``starts`` say where in ``ring`` [slots, frames, books] a row's first frame lies, ``first`` how many
    frames its slot has decoded before.
    """

    def __init__(self, codec: CodecFront, ring: Tensor, max_rows: int) -> None:
        self.ring, self.max_rows, self.device = ring, max_rows, codec.pre_conv.conv.weight.device
        self.frame_samples: int = codec.frame_samples
        self.slots, self.sources, self.starts = (self.zeros(torch.int64, max_rows) for _ in range(3))
        self.first = self.zeros(torch.int32, max_rows)
        self.pcm = self.zeros(torch.float32, max(self.rows_of(n) * n for n in CALL_FRAMES) * self.frame_samples)
        self.finite = self.zeros(torch.bool, max_rows)

    def zeros(self, dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def rows_of(self, num_frames: int) -> int:
        """Maximum rows of one call of ``num_frames`` frames."""
        return max(1, self.max_rows // num_frames)

    def read_codes(self, num_rows: int, num_frames: int) -> Tensor:
        """[rows, frames, books]."""
        places = (self.starts[:num_rows, None] + torch.arange(num_frames, device=self.device)) % self.ring.shape[1]
        return self.ring[self.sources[:num_rows, None], places]


class CodecProgram(DecodeBuffers):
    """``num_slots`` streams besides the dummy's, slot 0, each of at most ``max_frames`` frames."""

    def __init__(
        self, codec: CodecDecoder, ops: ReferenceOps, ring: Tensor, num_slots: int, max_rows: int, max_frames: int
    ) -> None:
        super().__init__(codec, ring, max_rows)
        self.codec, self.ops, self.dtype = codec, ops, codec.pre_conv.conv.weight.dtype
        self._fold()
        self._make_memory(num_slots, max_frames)

    # -- weights -------------------------------------------------------------------------------------------------

    def _fold(self) -> None:
        codec, dtype = self.codec, self.dtype
        fp32 = torch.float32
        quantizer, stack = codec.quantizer, codec.pre_transformer
        self.table = quantizer.projected_table.to(dtype)
        self.offsets = quantizer.offsets
        self.entry = fuse_convs(conv_product(codec.pre_conv, fp32), linear_product(stack.input_proj, fp32), dtype)
        self.layers = [self._layer(layer) for layer in stack.layers]
        stages = [self._next(*stage) for stage in codec.upsample]
        out = linear_product(stack.output_proj, fp32)
        first = stages[0].upsample
        wide = ConvParams.from_tensors(first.weight, first.bias, fp32)
        stages[0] = stages[0]._replace(upsample=fuse_convs(out, wide, dtype))
        self.stages = stages
        self._fold_waves()

    def _layer(self, layer: nn.Module) -> StackLayer:
        scales = layer.self_attn_layer_scale.scale.float(), layer.mlp_layer_scale.scale.float()
        plain = StackLayer.from_module(layer)
        assert isinstance(plain.out, Tensor)
        assert isinstance(plain.down, Tensor)
        return plain._replace(
            out=(plain.out.float() * scales[0][:, None]).to(self.dtype),
            down=(plain.down.float() * scales[1][:, None]).to(self.dtype),
        )

    def _next(self, upsample: CausalConvTranspose1d, block: ConvNeXtBlock) -> UpsampleWeights:
        depthwise = block.dwconv.conv
        gamma, back = block.gamma.float(), linear_product(block.pwconv2, torch.float32)
        return UpsampleWeights(
            upsample=transpose_product(upsample, self.dtype),
            rate=upsample.stride,
            depthwise=ConvParams(depthwise.weight[:, 0].t().float().contiguous(), depthwise.bias.float()),
            norm=(block.norm.weight.float(), block.norm.bias.float()),
            wide=linear_product(block.pwconv1, self.dtype),
            back=ConvParams.from_tensors(back.weight * gamma, back.bias * gamma, self.dtype),
        )

    def _fold_waves(self) -> None:
        head, *blocks, last, tail = self.codec.decoder
        self.head = conv_product(head, self.dtype)
        entries = [snake_params(block.block[0]) for block in blocks]
        self.head_waves = entries[0]
        after = [*entries[1:], snake_params(last)]
        self.blocks = [self._block(block.block, end) for block, end in zip(blocks, after, strict=True)]
        self.tail_weight = tail.conv.weight[0].t().float().contiguous()
        self.tail_bias = tail.conv.bias.float()

    def _block(self, parts: nn.ModuleList, end: SnakeParams) -> CodecBlockWeights:
        _, upsample, *units = parts
        starts = [snake_params(unit.act1, upsample.stride if i == 0 else 1) for i, unit in enumerate(units)]
        folded = [
            ResidualUnitParams(
                conv_product(unit.conv1, self.dtype), snake_params(unit.act2), conv_product(unit.conv2, self.dtype)
            )
            for unit in units
        ]
        return CodecBlockWeights(upsample.stride, transpose_product(upsample, self.dtype), [*starts, end], folded)

    # -- memory --------------------------------------------------------------------------------------------------

    def pad_specs(self) -> list[ConvStateSpec]:
        """Return the state of every layer with a past, in the order of ``run``."""
        codec = self.codec
        rate = 1
        specs = [ConvStateSpec(codec.config.codebook_dim, codec.pre_conv.context, rate)]
        for stage in codec.upsample:
            rate *= stage[0].stride
            specs.append(ConvStateSpec(stage[1].dwconv.width, stage[1].dwconv.context, rate))
        head, *blocks, _, tail = codec.decoder
        specs.append(ConvStateSpec(head.width, head.context, rate))
        for block in blocks:
            _, upsample, *units = block.block
            specs.append(ConvStateSpec(upsample.width, upsample.context, rate))
            rate *= upsample.stride
            specs += [ConvStateSpec(unit.conv1.width, unit.conv1.context, rate) for unit in units]
        return [*specs, ConvStateSpec(tail.width, tail.context, rate)]

    def _make_memory(self, num_slots: int, max_frames: int) -> None:
        stack = self.codec.pre_transformer
        sizes = stack.config
        self.window: int = stack.window
        self.rope = rope_tables(stack.rope.inverse_frequency, max_frames, self.device)
        length = self.window + max(CALL_FRAMES)
        shape = (len(self.layers), num_slots + 1, 2, length, sizes.num_key_value_heads, sizes.head_dim)
        self.past = self.zeros(self.dtype, *shape)
        specs = self.pad_specs()
        self.state = self.zeros(self.dtype, num_slots + 1, sum(spec.width * spec.context for spec in specs))
        values = max(self.rows_of(n) * sum((s.context + s.rate * n) * s.width for s in specs) for n in CALL_FRAMES)
        self.workspace = self.zeros(self.dtype, values)
        self.plans: dict[tuple[int, int], PaddedBufferPlan] = {}

    def plan(self, num_rows: int, num_frames: int) -> PaddedBufferPlan:
        key = num_rows, num_frames
        if key not in self.plans:
            self.plans[key] = PaddedBufferPlan(self.pad_specs(), num_rows, num_frames, self.workspace)
        return self.plans[key]

    # -- what a graph holds --------------------------------------------------------------------------------------

    def run(self, num_rows: int, num_frames: int) -> None:
        """``num_frames`` frames of each of the first ``num_rows`` of ``slots`` to ``pcm`` and ``finite``."""
        slots, first = self.slots[:num_rows], self.first[:num_rows]
        plan = self.plan(num_rows, num_frames)
        self.ops.load_conv_state(plan, self.state, slots, first == 0)
        pads = iter(plan.layers)
        codes = self.read_codes(num_rows, num_frames) + self.offsets
        pad = next(pads)
        pad.fresh.copy_(F.embedding_bag(codes.flatten(0, 1), self.table, mode="sum").view_as(pad.fresh))
        x = self.run_stack(pad, slots, first, num_rows, num_frames)
        pad = self.run_upsampling(x, pads)
        pad = self.run_blocks(pad, pads)
        pcm = self.pcm[: num_rows * num_frames * self.frame_samples].view(num_rows, -1)
        self.ops.output_conv(pad.buffer, self.tail_weight, self.tail_bias, pcm)
        self.finite[:num_rows] = torch.isfinite(pcm).all(-1)
        self.ops.store_conv_state(plan, self.state, slots)

    def run_stack(self, pad: PaddedBuffer, slots: Tensor, first: Tensor, num_rows: int, num_frames: int) -> Tensor:
        """The transformer: normed states [B, T, size]."""
        ops, eps = self.ops, self.codec.pre_transformer.norm.eps
        x = self.state.new_empty(num_rows, num_frames, self.entry.weight.shape[2])
        ops.conv(pad.buffer, self.entry, num_frames, act=x)
        residual = ResidualStream(x.flatten(0, 1))

        call = RingCall(slots, first, self.rope, num_frames, self.window)
        run_layers(ops, self.layers, residual, eps, lambda index, qkv: ops.ring_attention(qkv, self.past[index], call))
        return ops.add_rms_norm(residual, self.codec.pre_transformer.norm.weight, eps).view_as(x)

    def run_upsampling(self, x: Tensor, pads: Iterator[PaddedBuffer]) -> PaddedBuffer:
        """Two times twice as many positions -> the buffer of the wave decoder's head."""
        ops = self.ops
        eps = self.codec.upsample[0][1].norm.eps
        for number, stage in enumerate(self.stages):
            length = x.shape[1]
            pad = next(pads)
            wide = grouped(pad.fresh, length)
            ops.conv(x, stage.upsample, length, act=wide)
            y = ops.depthwise_norm(pad.buffer, stage.depthwise.weight, stage.depthwise.bias, stage.norm, eps)
            length = y.shape[1]
            hidden = y.new_empty(*y.shape[:2], stage.wide.bias.shape[0])
            ops.conv(y, stage.wide, length, act=hidden, gelu=True)
            after = next(pads) if number == len(self.stages) - 1 else None
            x = torch.empty_like(y) if after is None else after.fresh
            ops.conv(hidden, stage.back, length, residual=pad.fresh, act=x)
        assert after is not None
        return after

    def run_blocks(self, pad: PaddedBuffer, pads: Iterator[PaddedBuffer]) -> PaddedBuffer:
        """The wave decoder, head to last block -> the buffer of its tail."""
        ops, length = self.ops, pad.fresh.shape[1]
        after = next(pads)
        ops.conv(pad.buffer, self.head, length, act=after.fresh, waves=self.head_waves)
        for block in self.blocks:
            pad, after = after, next(pads)
            length = pad.fresh.shape[1]
            x = torch.empty(after.fresh.shape, dtype=self.dtype, device=self.device)
            raw, act = grouped(x, length), grouped(after.fresh, length)
            ops.conv(pad.buffer, block.upsample, length, raw=raw, act=act, waves=block.outer[0])
            for unit, waves in zip(block.units, block.outer[1:], strict=True):
                pad, after = after, next(pads)
                ops.residual_unit(pad.buffer, unit, x, after.fresh, waves, is_last=unit is block.units[-1])
        return after


class ModuleProgram(DecodeBuffers):
    """Runs the modules of a decoder over static buffers, for decoders without a ``CodecProgram``."""

    def __init__(self, codec: CodecFront, ring: Tensor, num_slots: int, max_rows: int) -> None:
        super().__init__(codec, ring, max_rows)
        self.codec = codec
        self.state = codec.new_state(num_slots + 1).values
        # State of the transformer, which is part of ``state``: the same memory.
        self.past = self.state[None]

    def run(self, num_rows: int, num_frames: int) -> None:
        """Decode one call, as ``CodecProgram.run``."""
        slots, first = self.slots[:num_rows], self.first[:num_rows]
        codes = self.read_codes(num_rows, num_frames).transpose(1, 2)
        values = self.state[slots].masked_fill((first == 0)[:, None], 0)
        pcm = self.codec(codes, CodecState(values, first.long()))
        self.state[slots] = values
        self.pcm[: pcm.numel()].view_as(pcm).copy_(pcm)
        self.finite[:num_rows] = torch.isfinite(pcm).all(-1)


def grouped(x: Tensor, length: int) -> Tensor:
    """x [B, length * rate, C] -> the same memory as [B, length, rate * C]."""
    rate = x.shape[1] // length
    return x.as_strided(
        (x.shape[0], length, rate * x.shape[2]), (x.stride(0), rate * x.shape[2], 1), x.storage_offset()
    )
