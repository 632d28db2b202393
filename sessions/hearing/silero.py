"""How likely it is that somebody speaks: silero's detector, run by onnxruntime alone.

A small recurrent network looks at windows of 32 ms, each with a little of the sound before it. Windows of many sounds
are looked at in one run: alone one takes 70 us, among 64 it takes 20.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sessions.audio.pcm import Pcm

WINDOW_MS = 32
CONTEXT_MS = 4
RATES = (8_000, 16_000)
STATE_SHAPE = (2, 1, 128)
FILE = Path("data") / "silero_vad.onnx"
"""In the package."""


class Track:
    """What the network remembers of one sound, whose windows follow each other without a gap."""

    def __init__(self) -> None:
        self.state: npt.NDArray[np.float32] = np.zeros(STATE_SHAPE, np.float32)


def likelihoods(tracks: Sequence[Track], windows: npt.NDArray[np.float32], sample_rate: int) -> npt.NDArray[np.float32]:
    """Of speech, 0 to 1, in the next window of each track. A window [context + window] has its ``CONTEXT_MS`` before
    it. No track may be there twice."""
    state = np.concatenate([track.state for track in tracks], axis=1)
    inputs = {"input": windows, "state": state, "sr": np.array(sample_rate, np.int64)}
    likely, state = network().run(None, inputs)
    for number, track in enumerate(tracks):
        track.state = state[:, number : number + 1]
    return np.asarray(likely[:, 0], np.float32)


class Windows:
    """Cuts a stream into windows that begin every ``hop_samples``, each with the ``context_samples`` before it."""

    def __init__(self, window_samples: int, hop_samples: int, context_samples: int) -> None:
        self._size, self._hop = context_samples + window_samples, hop_samples
        self._rest: Pcm = np.zeros(context_samples, np.float32)

    def push(self, pcm: Pcm) -> list[Pcm]:
        self._rest = np.concatenate([self._rest, pcm])
        num = max((self._rest.size - self._size) // self._hop + 1, 0)
        windows = [self._rest[at * self._hop : at * self._hop + self._size] for at in range(num)]
        self._rest = self._rest[num * self._hop :]
        return windows


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
