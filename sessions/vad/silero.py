"""Speech probability by the Silero VAD model, run by onnxruntime alone.

A small recurrent network takes windows of 32 ms, each with the audio just before it. Windows of many streams are
processed in one run: 70 us for one, 20 us each for 64.
"""

from __future__ import annotations

import importlib.util
from collections import deque
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

WINDOW_MS = 32
CONTEXT_MS = 4
RATES = (8_000, 16_000)
STATE_SHAPE = (2, 1, 128)
# Skipped windows that are replayed before the next window of their track: 1 s.
MAX_SKIPPED_WINDOWS = 31
# Relative to the package.
FILE = Path("data") / "silero_vad.onnx"


class VadState:
    """State of the network for one stream, whose windows follow each other without a gap."""

    def __init__(self) -> None:
        self.state: npt.NDArray[np.float32] = np.zeros(STATE_SHAPE, np.float32)
        # The last windows without inference, with their contexts.
        self.skipped: deque[bytes] = deque(maxlen=MAX_SKIPPED_WINDOWS)


def speech_probabilities(
    tracks: Sequence[VadState], windows: npt.NDArray[np.float32], sample_rate: int
) -> npt.NDArray[np.float32]:
    """Return the speech probability (0 to 1) of the next window of each track, shape [tracks].

    ``windows`` has the shape [tracks, context + window]; no track may appear twice.
    """
    state = np.concatenate([track.state for track in tracks], axis=1)
    inputs = {"input": windows, "state": state, "sr": np.array(sample_rate, np.int64)}
    probabilities, state = load_model().run(None, inputs)
    for number, track in enumerate(tracks):
        track.state = state[:, number : number + 1]
    return np.asarray(probabilities[:, 0], np.float32)


class WindowSlicer:
    """Cut encoded audio into windows of ``size`` bytes every ``hop`` bytes, each after its context."""

    def __init__(self, size: int, hop: int, before: bytes) -> None:
        self._size, self._hop = len(before) + size, hop
        self._rest = before

    def push(self, data: bytes) -> list[bytes]:
        rest = self._rest + data
        ends = range(self._size, len(rest) + 1, self._hop)
        self._rest = rest[len(ends) * self._hop :]
        return [rest[end - self._size : end] for end in ends]


@cache
def load_model() -> Any:
    """Load the network once per process, on one thread, where it is fastest.

    The package itself is not imported, because it would load torch.
    """
    import onnxruntime

    package = importlib.util.find_spec("silero_vad")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("the package silero-vad is not installed")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    path = Path(package.origin).parent / FILE
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
