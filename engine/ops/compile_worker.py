"""Compiles kernels for a GPU that it does not use, into Triton's cache.

Run as ``python -m engine.ops.compile_worker`` by ``engine.ops.parallel_compile``. Each line of its standard input is a
``CompileRequest`` in JSON, answered with a line: what went wrong, if anything. It ends with its input.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from importlib import import_module

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
    with suppress(BrokenPipeError):  # the parent has ended
        for line in sys.stdin:
            os.write(answers, answer_of(line).encode() + b"\n")


def answer_of(line: str) -> str:
    """Carry out a request; return what went wrong, if anything."""
    try:
        compile_kernel(*json.loads(line))
    except Exception as error:
        return json.dumps(f"{type(error).__name__}: {error}")
    return ""


if __name__ == "__main__":
    main()
