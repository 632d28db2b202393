"""Paged keys and values of the talker, and the attention context that reads and writes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.layers.transformer import attention
from engine.program.buffers import to_device
from engine.weights.quantize import as_bits

PAGE_BYTES = 4096
# A copy for each row takes less than indices for all: 55 us in place of 280 with two rows.
MAX_COPIED_ROWS = 4


@dataclass(frozen=True, slots=True)
class KVShape:
    num_layers: int
    num_kv_heads: int
    head_dim: int
    # Bound of the absolute values of keys; keys that are not normed have none.
    largest_key: float = math.inf


class PagedKV:
    """One tensor for all layers: [layer, key or value, block, position in block, head, D].

    Attention gives what it masks the weight 0, and 0 * NaN is NaN. So nothing that a broken row wrote may stay where
    others read: blocks are lent clear, block 0, which pads short tables, stays zero, and padding rows write to a
    block of their own, the last.
    """

    def __init__(
        self, shape: KVShape, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.block_size = block_size
        self.scratch_block = num_blocks + 1
        sizes = (shape.num_layers, 2, num_blocks + 2, block_size, shape.num_kv_heads, shape.head_dim)
        self.data = lazy_zeros(sizes, dtype) if device.type == "cpu" else torch.zeros(sizes, dtype=dtype, device=device)
        self._bits = as_bits(self.data)

    @staticmethod
    def block_bytes(shape: KVShape, block_size: int, dtype: torch.dtype) -> int:
        return shape.num_layers * 2 * block_size * shape.num_kv_heads * shape.head_dim * dtype.itemsize

    def clear(self, blocks: Sequence[int]) -> None:
        self._bits.index_fill_(2, to_device(blocks, torch.int64, self.data.device), 0)

    def flat_indices(self, tables: Sequence[Sequence[int]], length: int) -> Tensor:
        """Return the flattened positions of the first ``length`` positions of each row [rows, length]."""
        positions = np.arange(length)
        num_blocks = -(-length // self.block_size)
        blocks = np.asarray([table[:num_blocks] for table in tables], dtype=np.int64)[:, positions // self.block_size]
        return to_device(blocks * self.block_size + positions % self.block_size, torch.int64, self.data.device)

    def read(self, table: Sequence[int], length: int) -> Tensor:
        """Copy of the first ``length`` positions of a row, fp8 as bytes: [layer, 2, length, head, D]."""
        return self._bits.flatten(2, 3).index_select(2, self.flat_indices([table], length)[0])

    def write(self, tables: Sequence[Sequence[int]], values: Tensor) -> None:
        """Put positions 0..n-1 of each of these rows, as ``read`` gave them."""
        length = values.shape[2]
        if len(tables) <= MAX_COPIED_ROWS and length <= self.block_size:  # no indices to upload
            for table in tables:
                self._bits[:, :, table[0], :length] = values
            return
        self._bits.flatten(2, 3)[:, :, self.flat_indices(tables, length)] = values[:, :, None]


def lazy_zeros(sizes: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Zeros on the CPU that take no memory until they are written: the system clears a page when it is first touched.

    ``torch.zeros`` writes them all.
    """
    num_bytes = math.prod(sizes) * dtype.itemsize
    pages = np.zeros(num_bytes + PAGE_BYTES, dtype=np.uint8)
    start = -pages.ctypes.data % PAGE_BYTES
    return torch.from_numpy(pages[start : start + num_bytes]).view(dtype).view(*sizes)


class PagedContext:
    """Attention of B rows x T new positions over their own blocks.

    ``tables`` [B, M] holds block ids, padded with block 0; ``positions`` [B, T] are absolute.
    """

    def __init__(self, kv: PagedKV, tables: Tensor, positions: Tensor) -> None:
        self.kv = kv
        size = kv.block_size
        self.blocks, self.reach = tables.flatten(), tables.shape[1] * size
        self.slots = (tables.gather(1, positions // size) * size + positions % size).flatten()
        ahead = torch.arange(self.reach, device=tables.device) > positions[..., None]
        self.mask = torch.zeros(ahead.shape, dtype=kv.data.dtype, device=tables.device)
        self.mask = self.mask.masked_fill_(ahead, -torch.inf)[:, None]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        cache = self.kv.data[layer]
        lines = cache.flatten(1, 2)
        lines[0].index_copy_(0, self.slots, k.flatten(0, 1))
        lines[1].index_copy_(0, self.slots, v.flatten(0, 1))
        past = cache.index_select(1, self.blocks).view(2, q.shape[0], self.reach, *k.shape[2:])
        return attention(q, past[0], past[1], mask=self.mask)
