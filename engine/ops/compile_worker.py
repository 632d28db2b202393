"""Compiles kernels for a GPU that it does not use, into Triton's cache.

Run as ``python -m engine.ops.compile_worker NUM_PROCESSES`` by ``engine.ops.parallel_compile``. Each line of its
standard input is a request in JSON: module, name, specialization, target. Each is answered with its number and what
went wrong, if anything. Once the input ends and all is answered, the process ends.
"""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from importlib import import_module
from multiprocessing import get_context

from triton.backends.compiler import GPUTarget
from triton.runtime import driver


class TargetDriver:
    """What Triton asks a driver for to compile."""

    def __init__(self, target: GPUTarget) -> None:
        self.target = target

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> str:
        return f"{self.target.backend}:{self.target.arch}"


def compile_kernel(module: str, name: str, specialization: str, target: list[str | int]) -> None:
    # Triton keys its caches by device name, so a driver for each request costs nothing.
    driver.set_active(TargetDriver(GPUTarget(*target)))
    getattr(import_module(module), name).preload(specialization)


def main() -> None:
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # Triton prints what fails

    def write(compiling: Future[bytes]) -> None:
        with suppress(BrokenPipeError, BrokenProcessPool):  # the parent has ended, or one that compiles
            os.write(answers, compiling.result())

    with suppress(BrokenPipeError):
        # What is imported and found out for the first one the others inherit.
        os.write(answers, answer_of(0, sys.stdin.readline()))
    with ProcessPoolExecutor(int(sys.argv[1]), get_context("fork"), os.close, (answers,)) as pool:
        for number, line in enumerate(sys.stdin, 1):
            pool.submit(answer_of, number, line).add_done_callback(write)
    os.close(answers)  # before Triton is taken down, which takes long


def answer_of(number: int, line: str) -> bytes:
    """Carry out a request; return its number and what went wrong, if anything."""
    error = ""
    try:
        compile_kernel(*json.loads(line))
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    return json.dumps((number, error)).encode() + b"\n"


if __name__ == "__main__":
    main()
