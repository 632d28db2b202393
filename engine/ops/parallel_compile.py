"""Kernels compiled in parallel before they are launched one after another.

Triton's compiler holds Python's lock, so that threads of one process take turns: processes compile.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from engine.process import available_cores

log = logging.getLogger(__name__)

MAX_PROCESSES = 16
WORKER_COMMAND = (sys.executable, "-P", "-m", "engine.ops.compile_worker")
# Holds all requests of a start, so that recording them never waits for a compiler.
PIPE_BYTES = 2**20
# Before version 3.7 Triton builds a launcher for each signature with a C compiler: as many at once.
NUM_LOADING_THREADS = 4
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
    """A kernel by module and name, what Triton specializes it on, its GPU as backend, architecture, warp size, and the
    device that loads it.
    """

    module: str
    name: str
    specialization: str
    target: tuple[str, int, int]
    device: Any


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


def run_compiled(run: Callable[[bool], Result], launch_all: Callable[[], object]) -> Result:
    """Run ``run``. If Triton's cache is empty or lacks a kernel, compile all kernels of ``launch_all`` in parallel,
    then run it again.

    ``run`` is told whether ``launch_all`` has run and all its kernels are loaded.
    """
    try:
        with _stop_at_compilation():
            return run(False)
    except KernelNotCached:
        start = time.perf_counter()
    is_loaded = False
    try:
        is_loaded = compile_kernels(launch_all)
    except torch.OutOfMemoryError:
        raise
    except Exception:
        log.warning("parallel kernel compilation unavailable; compiling on demand", exc_info=True)
    else:
        log.info("kernels compiled in %.1f s", time.perf_counter() - start)
    return run(is_loaded)


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


def compile_kernels(launch_all: Callable[[], object]) -> bool:
    """Compile the kernels of ``launch_all``, which do not run, and load them; return whether all are loaded.

    Those that fail raise when they are launched.
    """
    loads: list[Future[None]] = []
    with ThreadPoolExecutor(NUM_LOADING_THREADS) as threads:

        def load(request: CompileRequest) -> None:
            loads.append(threads.submit(load_kernel, request))

        with compile_requests(load) as submit, record_requests(submit) as requests:
            launch_all()
    return len(loads) == len(requests) and not any(loading.exception() for loading in loads)


@contextmanager
def record_requests(submit: Callable[[CompileRequest], None]) -> Iterator[Collection[CompileRequest]]:
    """Submit what Triton would compile for the launches herein, which do not run, and list it: each kernel once."""
    from triton import knobs
    from triton.runtime import driver

    thread = threading.get_ident()
    requests: dict[CompileRequest, None] = {}
    # A repeated request takes Triton longer than a launch.
    asked_for: set[Hashable] = set()

    def ask_for(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], options: dict[str, Any]) -> None:
        key = driver.active.get_current_device(), kernel, *map(_kind, args), *options.items()
        if key not in asked_for:
            asked_for.add(key)
            kernel.warmup(*args, grid=grid, **options)

    def record(*, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        """Return whether Triton is to leave it at that."""
        if threading.get_ident() != thread:
            return False
        found = driver.active.get_current_target()
        target = found.backend, found.arch, found.warp_size
        device = driver.active.get_current_device()
        request = CompileRequest(fn.module, fn.name, compile["specialization_data"], target, device)
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


def _kind(value: Any) -> Hashable:
    """Return the key of a compilation: at least what Triton specializes on."""
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % 16 == 0
    if isinstance(value, int):
        return value == 1, value % 16 == 0, value.bit_length() > 31
    return type(value).__name__


@contextmanager
def compile_requests(on_compiled: Callable[[CompileRequest], None]) -> Iterator[Callable[[CompileRequest], None]]:
    """Submit requests to processes; ``on_compiled`` gets each that is compiled, on a thread or while it is submitted.

    At the end all are compiled, or a warning tells how many are not.
    """
    # What went wrong, if anything, by line: what several devices load is compiled once.
    compilations: dict[str, Future[str]] = {}
    in_order: list[Future[str]] = []
    process = start_processes()
    requests, answers = process.stdin, process.stdout
    assert requests is not None
    assert answers is not None

    def submit(request: CompileRequest) -> None:
        line = json.dumps(request[:4])
        if line not in compilations:
            compilations[line] = Future()
            in_order.append(compilations[line])
            with suppress(BrokenPipeError):  # then there is no answer, either
                requests.write(line.encode() + b"\n")
        compilations[line].add_done_callback(partial(report, request))

    def report(request: CompileRequest, compiled: Future[str]) -> None:
        if not compiled.result():
            on_compiled(request)

    def read_answers() -> None:
        for answer in answers:
            number, error = json.loads(answer)
            if not in_order[number].done():  # a process may be killed right behind its answer
                in_order[number].set_result(error)

    reading = threading.Thread(target=read_answers, name="voicewire-compile", daemon=True)
    with ExitStack() as stack:
        stack.enter_context(process)
        stack.callback(kill, process)  # by themselves they take long to end
        stack.callback(reading.join)
        stack.callback(requests.close)
        reading.start()
        try:
            yield submit
        except BaseException as error:
            if not isinstance(error, Exception) or isinstance(error, torch.OutOfMemoryError):
                kill(process)  # the start is given up
            raise
    errors = [compiled.result() if compiled.done() else "they have ended" for compiled in in_order]
    if failed := list(filter(None, errors)):
        log.warning("%d of %d kernels were not compiled by processes: %s", len(failed), len(errors), failed[0])


def start_processes() -> subprocess.Popen[bytes]:
    """Start one that forks others. Raises ``OSError``."""
    process = subprocess.Popen(
        [*WORKER_COMMAND, str(min(MAX_PROCESSES, available_cores()))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
        process_group=0,  # to kill all; and Ctrl-C is for this process
    )
    assert process.stdin is not None
    with suppress(OSError):  # the user's pipes may have their limit
        fcntl.fcntl(process.stdin, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return process


def kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def load_kernel(request: CompileRequest) -> None:
    """Load a compiled kernel where it is launched."""
    with torch.cuda.device(request.device):
        _ = getattr(import_module(request.module), request.name).preload(request.specialization).run
