"""Codes to PCM: the causal decoder of the 12 Hz speech tokenizer.

No look-ahead and nothing to flush: the 1,920 samples of a frame are final as soon as its codes are known.
Streaming carries ``CodecState``; ``state=None`` decodes whole sequences from their beginning.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.layers.streaming import CausalConv1d, CausalConvTranspose1d, Snake, StatefulLayer, assign_state
from engine.layers.transformer import CausalContext, Transformer, attention
from engine.models.qwen3_tts.config import CodecDecoderConfig


@dataclass(slots=True)
class CodecState:
    """values [B, F]: every layer's past, zero at the start; num_frames [B]: frames decoded so far. Updated in place."""

    values: Tensor
    num_frames: Tensor


class Codebook(nn.Module):
    """One table of vectors, stored as sums and counts."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.register_buffer("embedding_sum", torch.zeros(size, width))
        self.register_buffer("cluster_usage", torch.ones(size))

    def table(self) -> Tensor:
        return self.embedding_sum / self.cluster_usage.clamp(min=1e-5)[:, None]


class VectorQuantizer(nn.Module):
    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self._codebook = Codebook(size, width)


class ResidualQuantizer(nn.Module):
    """A chain of codebooks between two 1x1 convolutions; ``input_proj`` serves encoders only."""

    def __init__(self, config: CodecDecoderConfig, num_books: int) -> None:
        super().__init__()
        width = config.codebook_dim // 2
        self.vq = nn.Module()
        self.vq.layers = nn.ModuleList(VectorQuantizer(config.codebook_size, width) for _ in range(num_books))
        self.input_proj = nn.Conv1d(config.codebook_dim, width, 1, bias=False)
        self.output_proj = nn.Conv1d(width, config.codebook_dim, 1, bias=False)

    def tables(self) -> list[Tensor]:
        return [layer._codebook.table() for layer in self.vq.layers]

    def vectors(self, codes: Tensor) -> Tensor:
        """codes [B, n, T] -> the sum of their vectors, projected [B, codebook_dim, T]."""
        found = [F.embedding(codes[:, j], table) for j, table in enumerate(self.tables())]
        return self.output_proj(torch.stack(found).sum(0).transpose(1, 2))


class SplitQuantizer(nn.Module):
    """The semantic book and the acoustic chain, added after their own projections."""

    def __init__(self, config: CodecDecoderConfig) -> None:
        super().__init__()
        self.rvq_first = ResidualQuantizer(config, 1)
        self.rvq_rest = ResidualQuantizer(config, config.num_quantizers - 1)
        self.num_codes = config.codebook_size
        self.register_buffer("projected_table", None, persistent=False)

    def fuse(self) -> None:
        """Fold projections into the tables: all books become one lookup and one sum; the books are let go of."""
        projected = [
            table @ chain.output_proj.weight[..., 0].t()
            for chain in (self.rvq_first, self.rvq_rest)
            for table in chain.tables()
        ]
        self.projected_table = torch.cat(projected)
        self.offsets = torch.arange(len(projected), device=self.projected_table.device) * self.num_codes
        del self.rvq_first, self.rvq_rest

    def forward(self, codes: Tensor) -> Tensor:
        """codes [B, K, T] -> [B, codebook_dim, T]."""
        if self.projected_table is not None:
            batch, books, length = codes.shape
            index = (codes.transpose(1, 2) + self.offsets).reshape(-1, books)
            found = F.embedding_bag(index, self.projected_table, mode="sum")
            return found.view(batch, length, -1).transpose(1, 2)
        return self.rvq_first.vectors(codes[:, :1]) + self.rvq_rest.vectors(codes[:, 1:])


class WindowContext(StatefulLayer):
    """The last window - 1 keys and values of every layer of the codec's transformer, kept in the flat state."""

    def __init__(self, config: CodecDecoderConfig) -> None:
        stack = config.transformer
        self.row_shape = (stack.num_hidden_layers, 2, stack.num_key_value_heads, stack.head_dim)
        width = stack.num_hidden_layers * 2 * stack.num_key_value_heads * stack.head_dim
        super().__init__(width, config.sliding_window - 1)

    def bind(self, state: CodecState, length: int) -> StreamingWindow:
        own = state.values[:, self.offset : self.offset + self.num_state_values]
        layers, two, heads, size = self.row_shape
        past = own.view(-1, layers, two, self.context, heads, size)
        return StreamingWindow(past, state.num_frames, length)


class StreamingWindow:
    """Attention of ``length`` new positions over the kept past and themselves."""

    def __init__(self, past: Tensor, num_frames: Tensor, length: int) -> None:
        self.past = past
        window = past.shape[3]
        slots = torch.arange(window + length, device=past.device)
        distance = window + torch.arange(length, device=past.device)[:, None] - slots[None]
        in_window = (distance >= 0) & (distance <= window)
        filled = slots[None] >= window - num_frames[:, None]
        self.mask = (in_window[None] & filled[:, None])[:, None]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        past = self.past[:, layer]
        keys = torch.cat((past[:, 0], k), dim=1)
        values = torch.cat((past[:, 1], v), dim=1)
        kept = past.shape[2]
        past[:, 0] = keys[:, -kept:]
        past[:, 1] = values[:, -kept:]
        return attention(q, keys, values, mask=self.mask)


class PreTransformer(Transformer):
    """The transformer between the latent and the wave decoder, with a projection on both sides."""

    def __init__(self, config: CodecDecoderConfig) -> None:
        super().__init__(config.transformer)
        size = config.transformer.hidden_size
        self.input_proj = nn.Linear(config.latent_dim, size)
        self.output_proj = nn.Linear(size, config.latent_dim)
        self.window = config.sliding_window
        self.context = WindowContext(config)

    def decode(self, x: Tensor, state: CodecState | None) -> Tensor:
        """x [B, T, latent] -> the same shape."""
        length = x.shape[1]
        positions = torch.arange(length, device=x.device)[None]
        if state is None:
            context: CausalContext | StreamingWindow = CausalContext(self.window)
        else:
            positions = positions + state.num_frames[:, None]
            context = self.context.bind(state, length)
        return self.output_proj(self(self.input_proj(x), positions, context))


class ConvNeXtBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.dwconv = CausalConv1d(channels, channels, 7, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.pwconv1 = nn.Linear(channels, 4 * channels)
        self.pwconv2 = nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(torch.full((channels,), 1e-6))

    def forward(self, x: Tensor, state: Tensor | None) -> Tensor:
        y = self.norm(self.dwconv(x, state).transpose(1, 2))
        y = self.gamma * self.pwconv2(F.gelu(self.pwconv1(y)))
        return x + y.transpose(1, 2)


class ResidualUnit(nn.Module):
    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.act1 = Snake(channels)
        self.conv1 = CausalConv1d(channels, channels, 7, dilation)
        self.act2 = Snake(channels)
        self.conv2 = CausalConv1d(channels, channels, 1)

    def forward(self, x: Tensor, state: Tensor | None) -> Tensor:
        return x + self.conv2(self.act2(self.conv1(self.act1(x), state)))


class WaveBlock(nn.Module):
    """Snake, upsampling, three residual units of dilation 1, 3, 9; channels halve."""

    def __init__(self, channels: int, rate: int) -> None:
        super().__init__()
        half = channels // 2
        self.block = nn.ModuleList(
            [
                Snake(channels),
                CausalConvTranspose1d(channels, half, 2 * rate, rate),
                *(ResidualUnit(half, dilation) for dilation in (1, 3, 9)),
            ]
        )

    def forward(self, x: Tensor, state: Tensor | None) -> Tensor:
        snake, upsample, *units = self.block
        x = upsample(snake(x), state)
        for unit in units:
            x = unit(x, state)
        return x


class UpsampleStage(nn.ModuleList):
    def __init__(self, channels: int, rate: int) -> None:
        super().__init__([CausalConvTranspose1d(channels, channels, rate, rate), ConvNeXtBlock(channels)])

    def forward(self, x: Tensor, state: Tensor | None) -> Tensor:
        return self[1](self[0](x, state), state)


class CodecFront(nn.Module, ABC):
    """Codebooks, transformer and upsampling, common to all decoders; subclasses generate the PCM."""

    def __init__(self, config: CodecDecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.quantizer = SplitQuantizer(config)
        self.pre_conv = CausalConv1d(config.codebook_dim, config.latent_dim, 3)
        self.pre_transformer = PreTransformer(config)
        self.upsample = nn.ModuleList(UpsampleStage(config.latent_dim, rate) for rate in config.upsampling_ratios)
        self.num_state_values = 0

    @property
    def frame_samples(self) -> int:
        return self.config.frame_samples

    def fuse(self) -> None:
        """Precompute tables, exponentials and merged projections, in fp32, for inference."""
        self.quantizer.fuse()
        self.pre_transformer.fuse()
        for module in self.modules():
            if isinstance(module, Snake):
                module.fuse()

    def new_state(self, num_rows: int) -> CodecState:
        like = self.pre_conv.conv.weight
        return CodecState(
            values=like.new_zeros(num_rows, self.num_state_values),
            num_frames=torch.zeros(num_rows, dtype=torch.long, device=like.device),
        )

    def dequantize(self, codes: Tensor) -> Tensor:
        """codes [B, K, T] -> latent [B, codebook_dim, T]."""
        return self.quantizer(codes)

    def upsampled(self, latent: Tensor, state: CodecState | None) -> Tensor:
        """Upsample a latent [B, codebook_dim, T] to [B, latent_dim, positions], and advance ``state``."""
        values = None if state is None else state.values
        x = self.pre_conv(latent, values).transpose(1, 2)
        x = self.pre_transformer.decode(x, state).transpose(1, 2)
        if state is not None:
            state.num_frames += latent.shape[-1]
        for stage in self.upsample:
            x = stage(x, values)
        return x

    @abstractmethod
    def decode_latent(self, latent: Tensor, state: CodecState | None = None) -> Tensor:
        """Decode a latent [B, codebook_dim, T] to PCM [B, T * frame_samples] in [-1, 1]."""

    def forward(self, codes: Tensor, state: CodecState | None = None) -> Tensor:
        """codes [B, K, T] -> PCM [B, T * frame_samples]."""
        return self.decode_latent(self.dequantize(codes), state)


class CodecDecoder(CodecFront):
    """Everything under ``decoder.`` in the released speech_tokenizer file, by the released names."""

    def __init__(self, config: CodecDecoderConfig) -> None:
        super().__init__(config)
        widths = [config.decoder_dim >> i for i in range(len(config.upsample_rates) + 1)]
        self.decoder = nn.ModuleList(
            [
                CausalConv1d(config.latent_dim, config.decoder_dim, 7),
                *(WaveBlock(width, rate) for width, rate in zip(widths, config.upsample_rates, strict=False)),
                Snake(widths[-1]),
                CausalConv1d(widths[-1], 1, 7),
            ]
        )
        self.num_state_values = assign_state(self)
        # A faster form for streams, with a state of its own layout.
        self.streaming: Callable[[Tensor, CodecState], Tensor] | None = None

    def decode_latent(self, latent: Tensor, state: CodecState | None = None) -> Tensor:
        if self.streaming is not None and state is not None:
            return self.streaming(latent.transpose(1, 2), state)
        values = None if state is None else state.values
        x = self.upsampled(latent, state)
        for layer in self.decoder:
            x = layer(x) if isinstance(layer, Snake) else layer(x, values)
        return x[:, 0].clamp(-1.0, 1.0)
