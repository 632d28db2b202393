"""Runs the decode stage beside the frames: on a stream of their device, another device, or a CPU thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import torch
from torch import Tensor

from engine.program.buffers import DeviceEvent

DecodeWork = Callable[[], None]
# Of graphs beside each other, the smaller the sooner: for listeners who cannot wait, frames, and the rest of decoding,
# which fills what frames leave.
URGENT_PRIORITY, FRAME_PRIORITY, GATHERED_PRIORITY = -2, -1, 0
# Steps of as many rows are short: a second priority, whose graphs need memory of their own, would gain nothing.
MAX_ROWS_OF_ONE_PRIORITY = 64


def decode_priority(max_rows: int, enabled: bool = True) -> Callable[[int, int], int]:
    """Of calls beside steps of ``max_rows``, by rows and frames: slots that can wait gather several frames."""
    urgent = URGENT_PRIORITY if enabled and max_rows > MAX_ROWS_OF_ONE_PRIORITY else GATHERED_PRIORITY
    return lambda num_rows, num_frames: urgent if num_frames == 1 else GATHERED_PRIORITY


class PendingWork(Protocol):
    """Work on its way."""

    def wait(self) -> None: ...
    @property
    def is_done(self) -> bool: ...


class DecodeExecutor(Protocol):
    """Work in order, one after the other."""

    # The frames' codes, by slot, as this work sees them; its last row is the lane's own.
    ring: Tensor

    def wait_for_codes(self) -> None:
        """Make later work wait for the codes of all frames launched so far."""
        ...

    def run(self, work: DecodeWork) -> PendingWork: ...
    def close(self) -> None: ...


class CudaStreamExecutor:
    """A stream of a CUDA device; on the CPU, at once."""

    def __init__(self, ring: Tensor, bring_codes: Callable[[], DeviceEvent], priority: int = 0) -> None:
        """``bring_codes`` tells when those of all frames launched so far are in ``ring``."""
        self.ring, self._bring_codes = ring, bring_codes
        self._stream = new_stream(ring.device, priority)

    def wait_for_codes(self) -> None:
        brought = self._bring_codes()
        with torch.cuda.stream(self._stream):
            brought.make_stream_wait()

    def run(self, work: DecodeWork) -> PendingWork:
        with torch.cuda.stream(self._stream):
            work()
            return DeviceEvent(self.ring.device)

    def close(self) -> None:
        pass


def same_device_executor(ring: Tensor) -> CudaStreamExecutor:
    """On their own device. Its priority is that of work that is no graph, such as copies; graphs have their own."""
    return CudaStreamExecutor(ring, lambda: DeviceEvent(ring.device), priority=-1)


class CodeRingMirror:
    """The ring of codes elsewhere. It is copied whole: what a decode call may be reading is written over by itself."""

    def __init__(self, ring: Tensor, device: torch.device) -> None:
        is_host_memory = device.type == "cpu" and ring.is_cuda
        self.ring = torch.zeros(ring.shape, dtype=ring.dtype, device=device, pin_memory=is_host_memory)
        self._source, self._stream = ring, new_stream(ring.device)

    def copy(self) -> DeviceEvent:
        """Queue the copy behind the frames launched so far, and before none that follow."""
        frames_made = DeviceEvent(self._source.device)
        with torch.cuda.stream(self._stream):
            frames_made.make_stream_wait()
            self.ring[:-1].copy_(self._source[:-1], non_blocking=True)
            return DeviceEvent(self._source.device)


class CpuThreadExecutor:
    """A thread of its own, the only one for its arithmetic."""

    def __init__(self, ring: Tensor) -> None:
        self._mirror = CodeRingMirror(ring, torch.device("cpu"))
        self.ring, self._brought = self._mirror.ring, DeviceEvent(torch.device("cpu"))
        self._thread = ThreadPoolExecutor(1, "voicewire-decode", torch.set_num_threads, (1,))

    def wait_for_codes(self) -> None:
        self._brought = self._mirror.copy()

    def run(self, work: DecodeWork) -> PendingWork:
        return FutureWork(self._thread.submit(run_after, self._brought, work))

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)


@torch.inference_mode()
def run_after(brought: DeviceEvent, work: DecodeWork) -> None:
    brought.wait()
    work()


class FutureWork:
    """Raises what the work raised."""

    def __init__(self, future: Future[None]) -> None:
        self._future = future

    def wait(self) -> None:
        self._future.result()

    @property
    def is_done(self) -> bool:
        return self._future.done()


def new_stream(device: torch.device, priority: int = 0) -> torch.cuda.Stream | None:
    return torch.cuda.Stream(device, priority=priority) if device.type == "cuda" else None


def create_decode_executor(ring: Tensor, device: torch.device, wants_own: bool) -> DecodeExecutor:
    """For decoding on ``device``. On the CPU beside frames on the CPU, a thread of its own where that is wanted."""
    if device.type == "cpu" and (ring.is_cuda or wants_own):
        return CpuThreadExecutor(ring)
    if device.type == "cuda" and (device.index or 0) != (ring.device.index or 0):
        mirror = CodeRingMirror(ring, device)
        return CudaStreamExecutor(mirror.ring, mirror.copy)
    return same_device_executor(ring)
