"""How likely it is that somebody speaks: silero's detector, run by onnxruntime alone.

A small recurrent network looks at windows of 32 ms, each with a little of the one before.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sessions.audio.pcm import EMPTY, Pcm

WINDOW_MS = 32
RATES = (8_000, 16_000)
CONTEXT_MS = 4
STATE_SHAPE = (2, 1, 128)
FILE = Path("data") / "silero_vad.onnx"
"""In the package."""


class Silero:
    """One voice. The network is shared, its state is not."""

    def __init__(self, sample_rate: int) -> None:
        """Raises ``ValueError`` for any rate but 8 and 16 kHz."""
        if sample_rate not in RATES:
            raise ValueError(f"sample_rate must be one of {RATES}, got {sample_rate}")
        self.window_samples = WINDOW_MS * sample_rate // 1000
        self._context_samples = CONTEXT_MS * sample_rate // 1000
        self._rate = np.array(sample_rate, np.int64)
        self._network = network()
        self.reset()

    def reset(self) -> None:
        """Forget what was heard."""
        self._state = np.zeros(STATE_SHAPE, np.float32)
        self._context = np.zeros(self._context_samples, np.float32)

    def likelihood(self, window: Pcm) -> float:
        """Of speech in the next ``window_samples``, 0 to 1."""
        heard = np.concatenate([self._context, window])[np.newaxis]
        self._context = window[-self._context_samples :]
        inputs = {"input": heard, "state": self._state, "sr": self._rate}
        likely, self._state = self._network.run(None, inputs)
        return float(likely[0, 0])

    def skip(self, window: Pcm) -> None:
        """A window that needs no look: what was heard before is forgotten."""
        self._state = np.zeros(STATE_SHAPE, np.float32)
        self._context = window[-self._context_samples :]


class Windows:
    """Cuts a stream into windows."""

    def __init__(self, window_samples: int) -> None:
        self._window_samples = window_samples
        self._rest: npt.NDArray[np.float32] = EMPTY

    def push(self, pcm: Pcm) -> list[Pcm]:
        self._rest = np.concatenate([self._rest, pcm])
        whole = self._rest.size // self._window_samples * self._window_samples
        windows, self._rest = self._rest[:whole], self._rest[whole:]
        return list(windows.reshape(-1, self._window_samples))


@cache
def network() -> Any:
    """One for the process; on one thread, where it is quickest. The package is not imported: it would load torch."""
    import onnxruntime

    package = importlib.util.find_spec("silero_vad")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("the package silero-vad is not installed")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    path = Path(package.origin).parent / FILE
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
