"""What blocks of mel leave behind for those after them, page by page.

A *page* is one block: the keys and values of its frames in every layer, and the last inputs of the two position
convolutions, each for every ODE step and both branches of the guidance. So cached equals uncached (spec 4.8), and a
row's whole state is the table of its pages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.memory.kv_cache import lazy_zeros
from engine.models.cosyvoice3.config import FlowConfig
from engine.models.cosyvoice3.settings import FlowSettings

if TYPE_CHECKING:
    from engine.models.cosyvoice3.flow import Flow

CPU_BYTES = 2 * 2**30
MAX_PAGES = 4_096
# Conditioned and free.
BRANCHES = 2
# Stands before the first block, and pads short tables; nothing is ever written to it.
ZERO_PAGE = 0


class FlowPageStore:
    """``keys``, ``values`` [layer, line, frame, channel] and ``tails`` [convolution, line, frame, channel].

    A page has a line for each (step, branch); the last page is scratch, for rows that pad a call. A page is lent as
    it is: its holder writes all of a line before anybody reads it.
    """

    def __init__(self, config: FlowConfig, num_pages: int, dtype: torch.dtype, device: torch.device) -> None:
        dit = config.dit
        if dit.conv_pos_kernel - 1 > dit.block_frames:
            raise ValueError(
                f"a convolution of {dit.conv_pos_kernel} reads beyond a block of {dit.block_frames} frames"
            )
        self.num_pages, self.num_steps = num_pages, config.ode_steps
        self.scratch = num_pages + 1
        lines = (num_pages + 2) * config.ode_steps * BRANCHES
        inner = dit.heads * dit.head_dim
        self.keys = zeros((dit.depth, lines, dit.block_frames, inner), dtype, device)
        self.values = zeros((dit.depth, lines, dit.block_frames, inner), dtype, device)
        self.tails = zeros((2, lines, dit.conv_pos_kernel - 1, dit.dim), dtype, device)

    @staticmethod
    def page_bytes(config: FlowConfig, dtype: torch.dtype) -> int:
        dit = config.dit
        key_values = 2 * dit.depth * dit.block_frames * dit.heads * dit.head_dim
        tails = 2 * (dit.conv_pos_kernel - 1) * dit.dim
        return config.ode_steps * BRANCHES * (key_values + tails) * dtype.itemsize

    def flat_indices(self, pages: Tensor, steps: Tensor) -> Tensor:
        """pages [n, ...] at steps [n, ...] -> [n, branch, ...]."""
        first = (pages * self.num_steps + steps) * BRANCHES
        return torch.stack((first, first + 1), 1)


def num_pages(flow: Flow, settings: FlowSettings) -> int:
    """That the memory allows."""
    if settings.memory_mb is not None:
        num_bytes = settings.memory_mb * 2**20
    elif flow.device.type == "cuda":
        torch.cuda.empty_cache()
        num_bytes = int(torch.cuda.mem_get_info(flow.device)[0] * settings.memory_utilization)
    else:
        num_bytes = CPU_BYTES
    return min(MAX_PAGES, num_bytes // FlowPageStore.page_bytes(flow.config, flow.compute_dtype))


def zeros(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return lazy_zeros(sizes, dtype) if device.type == "cpu" else torch.zeros(sizes, dtype=dtype, device=device)
