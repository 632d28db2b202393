"""Layers for the CPU: weights packed once for oneDNN, where torch's own sgemm is slow for a few rows.

Measured on an AMD EPYC with AVX-512, one thread, fp32, all products of one step of the embedded voice, whose 63 MB
come from the third cache and not the second: 2.5 ms plain and 1.9 ms packed at one row, 6.3 and 3.1 ms at 12.
"""

from __future__ import annotations

from bisect import bisect_left

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Above the last, multiples of it.
ROW_COUNTS = (1, 4, 6, 8, 12, 16, 24, 32, 48, 64)
# The row count oneDNN chooses the layout for; any count works.
PACKED_FOR_ROWS = 8


def can_pack() -> bool:
    """Whether this torch has the private operators that the inductor's frozen graphs use."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def padded_rows(rows: int) -> int:
    """The least of the row counts that holds ``rows``."""
    if rows > ROW_COUNTS[-1]:
        return -(-rows // ROW_COUNTS[-1]) * ROW_COUNTS[-1]
    return ROW_COUNTS[bisect_left(ROW_COUNTS, rows)]


class PackedLinear(nn.Module):
    """``nn.Linear`` for inference on CPU. The plain weights are not kept."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self.product = torch.ops.mkldnn._linear_pointwise.default
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), PACKED_FOR_ROWS)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.numel() // self.in_features
        padding = padded_rows(rows) - rows
        if not padding:
            return self.product(x, self.packed, self.bias, "none", [], "")
        padded = F.pad(x.reshape(rows, self.in_features), (0, 0, 0, padding))
        out = self.product(padded, self.packed, self.bias, "none", [], "")[:rows]
        return out.view(*x.shape[:-1], self.out_features)


def pack_linears(module: nn.Module) -> None:
    """Replace every fp32 ``nn.Linear`` on the CPU below ``module``; without effect where packing is not to be had."""
    if not can_pack():
        return
    for name, child in module.named_children():
        if isinstance(child, nn.Linear) and child.weight.device.type == "cpu" and child.weight.dtype == torch.float32:
            setattr(module, name, PackedLinear(child))
        else:
            pack_linears(child)
