"""Compute the minimum time of one codec frame on one H200: bytes over bandwidth, operations over rate. No torch.

Assumes perfect overlap inside each phase, none between phases; KV and weights in bf16, decoder state carried.
"""

from __future__ import annotations

from dataclasses import dataclass

# Bytes a second, read plus written, of a large copy.
BANDWIDTH = 4.3e12
# bf16 operations a second of a large product.
RATE = 790e12
# Of one position.
KV_BYTES = 114_688
# Of one position.
ATTENTION_OPS = 229_376
PREDICTOR_WEIGHTS = 78.64e6
HEAD_WEIGHTS = 2.10e6
NUM_PASSES = 15
CODEC_BYTES, CODEC_STREAM_BYTES, CODEC_OPS = 0.226e9, 13e6, 4.95e9


@dataclass(frozen=True, slots=True)
class Roofline:
    """``talker`` and ``head`` weights of one step; ``projection`` is the predictor's, per pass."""

    talker: float
    head: float
    projection: float

    @staticmethod
    def of(shape: str) -> Roofline:
        if shape == "0.6b":
            return Roofline(440.4e6, 3072 * 1024, 0.0)
        return Roofline(1409.3e6, 3072 * 2048, 2.10e6)

    def talker_ms(self, rows: int, context: int) -> float:
        weights = 2 * (self.talker + self.head)
        moved = (weights + rows * context * KV_BYTES) / BANDWIDTH
        return 1000 * max(moved, rows * (weights + ATTENTION_OPS * context) / RATE)

    def predictor_ms(self, rows: int) -> float:
        total = 0.0
        for k in range(NUM_PASSES):
            weights = 2 * (PREDICTOR_WEIGHTS + HEAD_WEIGHTS + self.projection)
            moved = (weights + rows * 20_480 * (k + 2)) / BANDWIDTH
            inputs = 2 if k == 0 else 1
            work = rows * (2 * inputs * (PREDICTOR_WEIGHTS + self.projection) + 2 * HEAD_WEIGHTS) / RATE
            total += max(moved, work)
        return 1000 * total

    @staticmethod
    def codec_ms(rows: int) -> float:
        return 1000 * max((CODEC_BYTES + rows * CODEC_STREAM_BYTES) / BANDWIDTH, rows * CODEC_OPS / RATE)

    def total_ms(self, rows: int, context: int) -> float:
        return self.talker_ms(rows, context) + self.predictor_ms(rows) + self.codec_ms(rows)
