"""Compute the minimum time of one codec frame: bytes over bandwidth, operations over rate; of an H200 by default.

Assumes perfect overlap inside each phase, none between phases; decoder state carried. No torch.

    python -m benchmarks.roofline     a Markdown table of what smaller GPUs carry, computed and not measured
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

# Bytes a second, read plus written, of a large copy.
BANDWIDTH = 4.3e12
# bf16 operations a second of a large product.
RATE = 790e12
# Of one position, by the precision of the weights.
KV_BYTES = {"bf16": 114_688, "fp8": 57_344, "int4": 114_688}
# Of one position.
ATTENTION_OPS = 229_376
PREDICTOR_WEIGHTS = 78.64e6
HEAD_WEIGHTS = 2.10e6
NUM_PASSES = 15
CODEC_BYTES, CODEC_STREAM_BYTES, CODEC_OPS = 0.226e9, 13e6, 4.95e9
# Bytes of a quantized weight, its part of a scale included; talker and predictor, above two rows.
WEIGHT_BYTES = {"bf16": (2.0, 2.0), "fp8": (1.0, 2.0), "int4": (0.53125, 0.53125)}


@dataclass(frozen=True, slots=True)
class Roofline:
    """``talker`` and ``head`` weights of one step; ``projection`` is the predictor's, per pass."""

    talker: float
    head: float
    projection: float
    precision: str = "bf16"
    bandwidth: float = BANDWIDTH
    rate: float = RATE

    @staticmethod
    def of(shape: str, precision: str = "bf16", bandwidth: float = BANDWIDTH, rate: float = RATE) -> Roofline:
        if shape == "0.6b":
            return Roofline(440.4e6, 3072 * 1024, 0.0, precision, bandwidth, rate)
        return Roofline(1409.3e6, 3072 * 2048, 2.10e6, precision, bandwidth, rate)

    def talker_ms(self, rows: int, context: int) -> float:
        layer_bytes, _ = WEIGHT_BYTES[self.precision]
        moved = layer_bytes * self.talker + 2 * self.head + rows * context * KV_BYTES[self.precision]
        work = rows * (2 * (self.talker + self.head) + ATTENTION_OPS * context)
        return 1000 * max(moved / self.bandwidth, work / self.rate)

    def predictor_ms(self, rows: int) -> float:
        total = 0.0
        _, layer_bytes = WEIGHT_BYTES[self.precision]
        for k in range(NUM_PASSES):
            weights = layer_bytes * PREDICTOR_WEIGHTS + 2 * (HEAD_WEIGHTS + self.projection)
            moved = (weights + rows * 20_480 * (k + 2)) / self.bandwidth
            inputs = 2 if k == 0 else 1
            work = rows * (2 * inputs * (PREDICTOR_WEIGHTS + self.projection) + 2 * HEAD_WEIGHTS) / self.rate
            total += max(moved, work)
        return 1000 * total

    def codec_ms(self, rows: int) -> float:
        moved = (CODEC_BYTES + rows * CODEC_STREAM_BYTES) / self.bandwidth
        return 1000 * max(moved, rows * CODEC_OPS / self.rate)

    def total_ms(self, rows: int, context: int) -> float:
        return self.talker_ms(rows, context) + self.predictor_ms(rows) + self.codec_ms(rows)


# -- what smaller GPUs carry -------------------------------------------------------------------------------------


class Card(NamedTuple):
    """Datasheet values: memory in GB, bytes a second, operations a second in bf16 with sums in fp32."""

    name: str
    gb: float
    bandwidth: float
    rate: float
    has_fp8: bool = True


CARDS = (
    Card("RTX 3060", 12, 360e9, 25e12, has_fp8=False),
    Card("RTX 4060", 8, 272e9, 30e12),
    Card("RTX 4060 Ti", 16, 288e9, 44e12),
    Card("L4", 24, 300e9, 121e12),
    Card("A10", 24, 600e9, 125e12, has_fp8=False),
    Card("RTX 4090", 24, 1008e9, 165e12),
    Card("A100", 40, 1555e9, 312e12, has_fp8=False),
)
GB = 2**30
# Of 1.7B, measured by ``benchmarks.memory_budget``: weights, the peak while they are loaded, and all else but the cache
# at up to 64 rows.
WEIGHTS_GB = {"bf16": 3.9, "fp8": 2.7, "int4": 1.9}
LOAD_GB = {"bf16": 7.1, "fp8": 4.6, "int4": 3.8}
BASE_GB = 2.1
# For the display and other programs.
OTHER_GB = 0.5
# Of the cache for one reply of 80 s.
POSITIONS = 1_024
# A frame over its floor at 64 rows of an H200, where launches bound more of it than on these cards.
# That of fp8 was 3.2 with a bf16 cache; an fp8 cache lowers the floor by more than the time, by 11 % on an H100.
RATIO = {"bf16": 2.8, "fp8": 3.56, "int4": 6.0}
CONTEXT = 256
MAX_FRAME_MS = 0.95 * 80


def streams_by_memory(card: Card, precision: str) -> int:
    left = card.gb - OTHER_GB - BASE_GB - WEIGHTS_GB[precision]
    fits = card.gb - OTHER_GB >= LOAD_GB[precision]
    return max(0, int(left / (POSITIONS * KV_BYTES[precision] / GB))) if fits else 0


def streams_by_time(card: Card, precision: str) -> int:
    floor = Roofline.of("1.7b", precision, card.bandwidth, card.rate)
    rows = 0
    while RATIO[precision] * floor.total_ms(rows + 1, CONTEXT) <= MAX_FRAME_MS:
        rows += 1
    return rows


def card_rows() -> Iterator[str]:
    for card in CARDS:
        cells = " | ".join(cell(card, precision) for precision in WEIGHTS_GB)
        yield f"| {card.name}, {card.gb:g} GB | {cells} |"


def cell(card: Card, precision: str) -> str:
    if precision == "fp8" and not card.has_fp8:
        return "no fp8"
    by_memory, by_time = streams_by_memory(card, precision), streams_by_time(card, precision)
    return f"{min(by_memory, by_time)} ({by_memory}, {by_time})"


def main() -> None:
    print("| GPU | " + " | ".join(WEIGHTS_GB) + " |", "|---" * (1 + len(WEIGHTS_GB)) + "|", *card_rows(), sep="\n")


if __name__ == "__main__":
    main()
