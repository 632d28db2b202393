"""What an engine, a gateway and a door can carry: measured step times, and assumed rates where none was measured.

Step times are those of docs/performance.md and docs/experiments/gpu-capacity.md, with decode beside the next frame.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from engine.config import EngineConfig
from engine.runtime.step_model import StepModel, StepTimeTable

DEFAULTS = EngineConfig()
FRAME_S = 0.08
FRAMES_PER_S = 1 / FRAME_S
# Milliseconds of a step of the 1.7B shape by its rows.
STEP_MS = {
    "h200": {1: 3.2, 64: 6.1, 256: 11.8, 1024: 36.9},
    "h100": {1: 3.98, 64: 6.75, 256: 14.6, 1024: 45.4},
}
# More sockets than this on one machine of 16 cores had single late packets, whatever the device had left.
MAX_SOCKETS_PER_ENGINE = 1_200
# Mean positions of text, voice and layout before the first frame.
PROMPT_POSITIONS = 60


def interpolate_steps(points: dict[int, float], max_rows: int) -> dict[int, float]:
    """Seconds of a step for each power of two up to ``max_rows``, on straight lines between the measured points."""
    rows = sorted(points)
    sizes = sorted({2**power for power in range(int(math.log2(max_rows)) + 1)} | {max_rows})
    steps = {}
    for size in sizes:
        above = next((row for row in rows if row >= size), rows[-1])
        below = max((row for row in rows if row <= size), default=rows[0])
        share = 0.0 if above == below else (size - below) / (above - below)
        steps[size] = (points[below] + share * (points[above] - points[below])) / 1000
    return steps


def count_sustained(steps: dict[int, float], utilization: float) -> int:
    """Count the paced replies that the engine's admission accepts (``StepModel.can_sustain``)."""
    model = StepModel(StepTimeTable(steps))
    low, high = 0, 1 << 20
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if model.can_sustain(middle, utilization * FRAME_S) else (low, middle - 1)
    return low


@dataclass(frozen=True)
class Costs:
    """Capacity of one engine. ``position_s`` is computed: 1.7B weights, 300 TFLOP/s, twice that for the rest."""

    steps: dict[int, float]
    utilization: float = DEFAULTS.admission_utilization
    max_places: int = MAX_SOCKETS_PER_ENGINE
    max_prefill_positions: int = DEFAULTS.max_prefill_positions
    position_s: float = 25e-6
    # Decoding a frame again after a takeover, of a batch of 64 (docs/experiments/gpu-capacity.md: 1.72 ms).
    decode_frame_s: float = 27e-6

    @classmethod
    def of_device(cls, device: str, max_rows: int = 768) -> Costs:
        return cls(interpolate_steps(STEP_MS[device], max_rows))

    @cached_property
    def device_places(self) -> int:
        """New replies are refused beyond it."""
        return count_sustained(self.steps, self.utilization)

    @cached_property
    def places(self) -> int:
        return min(self.device_places, self.max_places)

    @cached_property
    def sustained(self) -> float:
        """Live replies beyond which the engine generates slower than real time."""
        return self.places / self.utilization

    def step_s(self, num_live: float) -> float:
        """Seconds of a step when this many replies are live; at most the largest batch has rows."""
        size = next((size for size in self.steps if size >= num_live), max(self.steps))
        return self.steps[size]

    def takeover_positions(self, reply_s: float) -> float:
        """Mean positions to compute again: the age of a live reply has the mean of its length (memoryless)."""
        return PROMPT_POSITIONS + FRAMES_PER_S * reply_s

    def positions_per_s(self, num_live: float) -> float:
        """Positions of takeovers that an engine computes in a second, beside its live replies."""
        positions = self.max_prefill_positions
        return positions / (self.step_s(num_live) + positions * (self.position_s + self.decode_frame_s))
