"""The same speech faster or slower, its pitch kept: FFmpeg's ``atempo`` (overlap-add where it fits best), as a stream.

Whatever the cut, the filter is given pieces of one length, so that it gives one signal. It holds back some 100 ms; what
comes out in the end is cut or filled with silence to the length that the speed asks for.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from sessions.audio.framer import Framer
from sessions.audio.pcm import EMPTY, Pcm

if TYPE_CHECKING:
    from av.filter.graph import Graph

MIN_SPEED, MAX_SPEED = 0.25, 4.0
# Minimum tempo of one filter; slower speech passes two.
SLOWEST_STEP = 0.5
PIECE_MS = 20


class TimeStretcher:
    """``speed`` 2 makes speech half as long. With ``speed`` 1 it is the identity and holds nothing back."""

    def __init__(self, sample_rate: int, speed: float) -> None:
        self._rate = sample_rate
        self._speed = speed
        self._framer = Framer(sample_rate * PIECE_MS // 1000)
        self._graph: Graph | None = None
        self._num_in = self._num_out = 0

    def push(self, pcm: Pcm) -> Pcm:
        if self._speed == 1.0:
            return pcm
        return _joined([self._filter(frame.pcm) for frame in self._framer.push(pcm)])

    def flush(self) -> Pcm:
        """The rest of the signal. What is pushed next begins a new one."""
        if self._speed == 1.0:
            return EMPTY
        last = [self._filter(frame.pcm[: frame.pcm.size - frame.padding_samples]) for frame in self._framer.flush()]
        rest = _joined([*last, self._filter(None)])
        missing = round(self._num_in / self._speed) - (self._num_out - rest.size)
        self._graph, self._num_in, self._num_out = None, 0, 0
        return np.concatenate([rest, np.zeros(max(missing - rest.size, 0), np.float32)])[: max(missing, 0)]

    def _filter(self, pcm: Pcm | None) -> Pcm:
        """``None`` brings out what is held back."""
        if pcm is None and self._num_in == 0:
            return EMPTY
        if self._graph is None:
            self._graph = _atempo(self._rate, self._speed)
        self._graph.push(None if pcm is None else self._frame(pcm))
        out = _joined(_drain_graph(self._graph))
        self._num_out += out.size
        return out

    def _frame(self, pcm: Pcm) -> Any:
        from av import AudioFrame

        frame = AudioFrame.from_ndarray(pcm.reshape(1, -1), format="flt", layout="mono")
        frame.sample_rate = self._rate
        frame.time_base = Fraction(1, self._rate)
        frame.pts = self._num_in
        self._num_in += pcm.size
        return frame


def _atempo(sample_rate: int, speed: float) -> Graph:
    from av.filter import Graph

    graph = Graph()
    graph.threads = 1  # else each graph starts a thread for every core
    steps = [speed] if speed >= SLOWEST_STEP else [speed**0.5, speed**0.5]
    nodes = [
        graph.add_abuffer(sample_rate=sample_rate, format="flt", layout="mono", time_base=Fraction(1, sample_rate)),
        *(graph.add("atempo", f"{step:.6f}") for step in steps),
        graph.add("abuffersink"),
    ]
    graph.link_nodes(*nodes).configure()
    return graph


def _drain_graph(graph: Graph) -> list[Pcm]:
    from av import FFmpegError
    from av.error import BlockingIOError as NothingYet

    pieces = []
    while True:
        try:
            pieces.append(np.asarray(graph.pull().to_ndarray()[0], np.float32))
        except (NothingYet, EOFError, FFmpegError):
            return pieces


def _joined(pieces: list[Pcm]) -> Pcm:
    return np.concatenate([EMPTY, *pieces])
