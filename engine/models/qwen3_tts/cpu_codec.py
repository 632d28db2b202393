"""The codec decoder's streaming form on the CPU: the arithmetic of ``CodecDecoder``, channels last."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.layers.channels_last import ChannelsLastConv, ChannelsLastSnake, ChannelsLastUpsampling
from engine.models.qwen3_tts.codec_decoder import (
    CodecDecoder,
    CodecState,
    ConvNeXtBlock,
    ResidualUnit,
    UpsampleStage,
    WaveBlock,
)

# (x [B, T, C], state [B, F]) -> the output of one layer.
Step = Callable[[Tensor, Tensor], Tensor]


class CpuCodecDecoder:
    """latent [B, T, codebook_dim] -> PCM [B, T * frame_samples], and the state moves on."""

    def __init__(self, codec: CodecDecoder) -> None:
        head, *blocks, snake, tail = codec.decoder
        self.transformer = codec.pre_transformer
        self.pre_conv = ChannelsLastConv(codec.pre_conv)
        self.steps: list[Step] = [
            *(step for stage in codec.upsample for step in upsample_steps(stage)),
            ChannelsLastConv(head),
            *(step for block in blocks for step in wave_steps(block)),
            ChannelsLastSnake(snake),
            ChannelsLastConv(tail),
        ]

    def __call__(self, x: Tensor, state: CodecState) -> Tensor:
        length = x.shape[1]
        x = self.transformer.decode(self.pre_conv(x, state.values), state)
        state.num_frames += length
        with np.errstate(invalid="ignore"):  # values that are not finite are found at the end, row by row
            for step in self.steps:
                x = step(x, state.values)
        return x[..., 0].clamp_(-1.0, 1.0)


def upsample_steps(stage: UpsampleStage) -> list[Step]:
    return [ChannelsLastUpsampling(stage[0]), convnext_step(stage[1])]


def convnext_step(block: ConvNeXtBlock) -> Step:
    depthwise, gamma = ChannelsLastConv(block.dwconv), block.gamma.detach()

    def step(x: Tensor, state: Tensor) -> Tensor:
        y = block.pwconv2(F.gelu(block.pwconv1(block.norm(depthwise(x, state)))))
        return torch.addcmul(x, y, gamma)

    return step


def wave_steps(layer: WaveBlock) -> list[Step]:
    snake, upsampling, *units = layer.block
    return [ChannelsLastSnake(snake), ChannelsLastUpsampling(upsampling), *(unit_step(unit) for unit in units)]


def unit_step(unit: ResidualUnit) -> Step:
    first, wide = ChannelsLastSnake(unit.act1), ChannelsLastConv(unit.conv1)
    second, narrow = ChannelsLastSnake(unit.act2), ChannelsLastConv(unit.conv2)
    return lambda x, state: narrow(second(wide(first(x), state)), state, residual=x)
