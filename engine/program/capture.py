"""One CUDA graph for each batch bucket; on the CPU the same computation run eagerly."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence

import torch

# Held while a graph is captured and while a recording of a voice is encoded: what one thread asks of the device's
# memory while another captures can break the capture.
CAPTURE_LOCK = threading.Lock()
# Rows of a step are padded to the next of these; larger ones are an eighth apart.
BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 640, 768, 896, 1024, 1152, 1280, 1408, 1536)


def buckets_up_to(limit: int) -> tuple[int, ...]:
    """Every bucket below ``limit``, and ``limit`` itself."""
    sizes = [size for size in BUCKETS if size < limit]
    while sizes and sizes[-1] >= BUCKETS[-1] and sizes[-1] * 9 // 8 < limit:
        sizes.append(sizes[-1] * 9 // 8)
    return (*sizes, limit)


def bucket_for(buckets: Sequence[int], count: int) -> int:
    """The smallest bucket that holds ``count`` rows."""
    return buckets[bisect_left(buckets, count)]


class GraphSet:
    """Computations by key over static buffers; all share one memory pool.

    ``capture`` runs a computation once, unless ``has_run``, over whatever the buffers hold, and records it: at start,
    when they hold dummy rows. A key that was not captured then runs eagerly on first use and is captured on the next.
    """

    def __init__(
        self, run: Callable[..., None], device: torch.device, enabled: bool = True,
        priority_of: Callable[..., int] = lambda *key: 0,
    ) -> None:  # fmt: skip
        """``priority_of`` a key: that of its kernels beside those of other streams, the smaller the sooner."""
        self._run, self._device, self.priority_of = run, device, priority_of
        self.captures = enabled and device.type == "cuda"
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._has_run: set[Hashable] = set()
        self._pool = torch.cuda.graph_pool_handle() if self.captures else None
        # To record on, by priority, which a graph keeps wherever it is replayed. The set's own: the scratch memory of
        # products goes by stream, and two sets may run at once.
        self._streams: dict[int, torch.cuda.Stream] = {}

    def __len__(self) -> int:
        return len(self._graphs)

    def capture(self, *key: int, has_run: bool = False) -> None:
        if self.captures and key not in self._graphs:
            if not has_run:
                self.warm_up(*key)
            with torch.cuda.device(self._device):
                self._record(*key)

    def warm_up(self, *key: int) -> None:
        """Run the computation once, over whatever the buffers hold."""
        if self.captures:
            with torch.cuda.device(self._device):
                self._run(*key)

    def _record(self, *key: int) -> None:
        priority = self.priority_of(*key)
        if priority not in self._streams:
            self._streams[priority] = torch.cuda.Stream(self._device, priority=priority)
        stream = self._streams[priority]
        with CAPTURE_LOCK:
            torch.cuda.synchronize(self._device)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
                self._run(*key)
        self._graphs[key] = graph

    def replay(self, *key: int) -> None:
        """Run the computation of ``key`` in the current stream's order."""
        if key not in self._graphs:
            if not self.captures or key not in self._has_run:
                self._has_run.add(key)
                self._run(*key)
                return
            self._record(*key)
        self._graphs[key].replay()
