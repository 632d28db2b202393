"""Products with weights packed once for oneDNN: on CPUs where torch's own sgemm is slow for a few rows.

Measured on an AMD EPYC with AVX-512, one thread, fp32, [B, 256] x [256, 1280]: plain 106 us and packed 50 us at 12
rows, 57 and 29 us at 4; at one row plain wins, 20 against 27 us (``benchmarks/engine_step.py --plain`` turns it off).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PACKED_FOR_ROWS = 8
"""The row count oneDNN chooses the layout for; any count works."""


def can_pack() -> bool:
    """Whether this torch has the private operators that the inductor's frozen graphs use."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class PackedLinear(nn.Module):
    """``nn.Linear`` for inference on CPU; one row takes the plain product."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.product = torch.ops.mkldnn._linear_pointwise.default
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), PACKED_FOR_ROWS)

    def forward(self, x: Tensor) -> Tensor:
        if x.numel() == self.in_features:
            return F.linear(x, self.weight, self.bias)
        return self.product(x, self.packed, self.bias, "none", [], "")


def pack_linears(module: nn.Module) -> None:
    """Replace every fp32 ``nn.Linear`` on the CPU below ``module``; without effect where packing is not to be had."""
    if not can_pack():
        return
    for name, child in module.named_children():
        if isinstance(child, nn.Linear) and child.weight.device.type == "cpu" and child.weight.dtype == torch.float32:
            setattr(module, name, PackedLinear(child))
        else:
            pack_linears(child)
