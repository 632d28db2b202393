"""Kernels compiled in parallel before they are launched one after another.

Triton's compiler is in large part Python, so that threads of one process take turns: each worker is a process.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from engine.process import available_cores

log = logging.getLogger(__name__)

MAX_WORKERS = 16
WORKER_COMMAND = (sys.executable, "-P", "-m", "engine.ops.compile_worker")
# Receives a kernel, its grid, its arguments and options instead of the device.
Sink = Callable[[Any, tuple[int, ...], tuple[Any, ...], dict[str, Any]], None]
Result = TypeVar("Result")


class _Interception(threading.local):
    """Of the present thread: other threads launch meanwhile."""

    sink: Sink | None = None


_interception = _Interception()


class KernelNotCached(Exception):
    """A kernel has to be compiled."""


class CompileRequest(NamedTuple):
    """A kernel by module and name, what Triton specializes it on, and the GPU as backend, architecture, warp size."""

    module: str
    name: str
    specialization: str
    target: tuple[str, int, int]


def is_compile_only() -> bool:
    return _interception.sink is not None


def launch(kernel: Any, *grid: int) -> Callable[..., Any]:
    """Return a launcher of ``kernel``; within ``intercept`` it does not run."""
    sink = _interception.sink
    return kernel[grid] if sink is None else partial(_intercepted, sink, kernel, grid)


def _intercepted(sink: Sink, kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    sink(kernel, grid, args, options)


@contextmanager
def intercept(sink: Sink) -> Iterator[None]:
    """Hand this thread's launches over to ``sink``: kernels leave what they would write as it was."""
    _interception.sink = sink
    try:
        yield
    finally:
        _interception.sink = None


def run_compiled(run: Callable[[], Result], launch_all: Callable[[], object]) -> Result:
    """Run ``run``. If Triton's cache is empty or lacks a kernel, compile all kernels of ``launch_all`` in parallel,
    then run it again.
    """
    try:
        with _stop_at_compilation():
            return run()
    except KernelNotCached:
        start = time.perf_counter()
    try:
        with compile_only():
            launch_all()
    except torch.OutOfMemoryError:
        raise
    except Exception:
        log.warning("parallel kernel compilation unavailable; compiling on demand", exc_info=True)
    else:
        log.info("kernels compiled in %.1f s", time.perf_counter() - start)
    return run()


@contextmanager
def _stop_at_compilation() -> Iterator[None]:
    """Raise ``KernelNotCached`` if Triton's cache is empty, or after the first kernel that had to be compiled."""
    try:
        from triton import knobs
    except ImportError:  # there are no kernels
        yield
        return

    thread = threading.get_ident()

    def stop(*, cache_hit: bool, **_: Any) -> None:
        if not cache_hit and threading.get_ident() == thread:
            raise KernelNotCached

    folder = Path(knobs.cache.dir)
    if not folder.exists() or not any(folder.iterdir()):
        raise KernelNotCached
    before, knobs.compilation.listener = knobs.compilation.listener, stop
    try:
        yield
    finally:
        knobs.compilation.listener = before


@contextmanager
def compile_only() -> Iterator[None]:
    """Kernels launched herein do not run; at the end all are compiled. Those that fail raise when they are launched."""
    with ExitStack() as stack:
        with compile_requests(start_workers(stack)) as submit, record_requests(submit) as requests:
            yield
        build_launchers(requests)


@contextmanager
def record_requests(submit: Callable[[CompileRequest], None]) -> Iterator[Collection[CompileRequest]]:
    """Submit what Triton would compile for the launches herein, which do not run, and list it: each kernel once."""
    from triton import knobs

    thread = threading.get_ident()
    requests: dict[CompileRequest, None] = {}
    # A repeated request takes Triton longer than a launch.
    asked_for: set[Hashable] = set()

    def ask_for(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], options: dict[str, Any]) -> None:
        key = kernel, *map(_kind, args), *options.items()
        if key not in asked_for:
            asked_for.add(key)
            kernel.warmup(*args, grid=grid, **options)

    def record(*, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        """Return whether Triton is to leave it at that."""
        if threading.get_ident() != thread:
            return False
        request = CompileRequest(fn.module, fn.name, compile["specialization_data"], current_target())
        if request not in requests:
            requests[request] = None
            submit(request)
        return True

    before, knobs.runtime.jit_cache_hook = knobs.runtime.jit_cache_hook, record
    try:
        with intercept(ask_for):
            yield requests
    finally:
        knobs.runtime.jit_cache_hook = before


def current_target() -> tuple[str, int, int]:
    """Return backend, architecture and warp size of the current device."""
    from triton.runtime import driver

    target = driver.active.get_current_target()
    return target.backend, target.arch, target.warp_size


def _kind(value: Any) -> Hashable:
    """Return the key of a compilation: at least what Triton specializes on."""
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % 16 == 0
    if isinstance(value, int):
        return value == 1, value % 16 == 0, value.bit_length() > 31
    return type(value).__name__


class CompileWorker:
    """A process that compiles one kernel at a time; it ends with ``stack``."""

    def __init__(self, stack: ExitStack) -> None:
        self._process = subprocess.Popen(
            WORKER_COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
            process_group=0,  # Ctrl-C is for this process
        )
        stack.enter_context(self._process)
        stack.callback(self.kill)  # by itself it takes long to end

    def kill(self) -> None:
        self._process.kill()

    def compile(self, request: CompileRequest) -> str:
        """Return what went wrong, if anything. Raises ``OSError`` if the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # then there is no answer, either
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
        answer = self._process.stdout.readline()
        if not answer:
            raise OSError("a process that compiles kernels has ended")
        return answer.decode().strip()


def start_workers(stack: ExitStack) -> list[CompileWorker]:
    """Start a worker on each core. Raises ``OSError`` if none starts."""
    workers: list[CompileWorker] = []
    try:
        while len(workers) < min(MAX_WORKERS, available_cores()):
            workers.append(CompileWorker(stack))
    except OSError as error:
        if not workers:
            raise
        log.warning("only %d processes that compile kernels start: %s", len(workers), error)
    return workers


@contextmanager
def compile_requests(workers: Sequence[CompileWorker]) -> Iterator[Callable[[CompileRequest], None]]:
    """Submit requests to the workers; at the end they are compiled, or a warning tells how many are not."""
    waiting: SimpleQueue[CompileRequest | None] = SimpleQueue()
    submitted: list[CompileRequest] = []

    def submit(request: CompileRequest) -> None:
        submitted.append(request)
        waiting.put(request)

    with ThreadPoolExecutor(len(workers)) as threads:
        feeding = [threads.submit(feed, worker, waiting) for worker in workers]
        try:
            yield submit
        except BaseException as error:
            if not isinstance(error, Exception) or isinstance(error, torch.OutOfMemoryError):
                for worker in workers:  # the start is given up
                    worker.kill()
            raise
        finally:
            for _ in feeding:
                waiting.put(None)
    answers = [answer for fed in feeding for answer in fed.result()]
    if num_left := len(submitted) - answers.count(""):
        first = next(filter(None, answers))
        log.warning("%d of %d kernels were not compiled by processes: %s", num_left, len(submitted), first)


def feed(worker: CompileWorker, waiting: SimpleQueue[CompileRequest | None]) -> list[str]:
    """Hand over waiting requests until one is ``None`` or the worker ends; return what went wrong with each."""
    answers: list[str] = []
    try:
        while request := waiting.get():
            answers.append(worker.compile(request))
    except OSError as error:
        answers.append(str(error))
    return answers


def build_launchers(requests: Collection[CompileRequest]) -> None:
    """Load one kernel of each signature: before Triton 3.7 a C compiler then builds what launches them."""
    if not torch.cuda.is_available():
        return
    device = torch.cuda.current_device()

    def load(request: CompileRequest) -> None:
        # What fails raises when it is launched.
        with suppress(Exception), torch.cuda.device(device):
            _ = getattr(import_module(request.module), request.name).preload(request.specialization).run

    with ThreadPoolExecutor(MAX_WORKERS) as threads:
        list(threads.map(load, one_of_each_signature(requests, current_target())))


def one_of_each_signature(
    requests: Collection[CompileRequest], target: tuple[str, int, int]
) -> Collection[CompileRequest]:
    """Return a request of each signature among those for ``target``."""
    found = [request for request in requests if request.target == target]
    return {str(json.loads(request.specialization)["signature"]): request for request in found}.values()
