"""Compiles kernels for a GPU that it does not use, into Triton's cache.

Run as ``python -m engine.ops.compile_worker NUM_PROCESSES`` by ``engine.ops.parallel_compile``. Each line of its
standard input is a request in JSON: module, name, specialization, target. Each is answered with its number and what
went wrong, if anything. Once the input ends and all is answered, the process ends.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
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


def main() -> None:
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # Triton prints what fails
    with suppress(BrokenPipeError):  # the parent has ended
        answer_all(answers, sys.stdin, int(sys.argv[1]))
    os.close(answers)  # before Triton is taken down, which takes long


def answer_all(answers: int, lines: Iterable[str], max_forked: int) -> None:
    """Answer the first request here and each other in a forked process, which inherits what the first one found out.

    Here is answered as well what no process can be forked for and, at the end, what killed processes leave.
    """
    forked: dict[int, tuple[int, str]] = {}
    left: list[tuple[int, str]] = []

    def wait_for_one() -> None:
        process, status = os.wait()
        request = forked.pop(process)
        if status:
            left.append(request)

    for number, line in enumerate(lines):
        if len(forked) == max_forked:
            wait_for_one()
        with suppress(Exception):  # the answer says what is wrong
            import_module(json.loads(line)[0])  # once for all
        process = fork_answer(answers, number, line) if number else None
        if process is None:
            answer(answers, number, line)
        else:
            forked[process] = number, line
    while forked:
        wait_for_one()
    for request in left:
        answer(answers, *request)


def fork_answer(answers: int, number: int, line: str) -> int | None:
    """Fork a process that answers a request; return its id, or None if none can be forked."""
    try:
        process = os.fork()
    except OSError:
        return None
    if process:
        return process
    try:
        answer(answers, number, line)
        os._exit(0)
    finally:
        os._exit(1)


def answer(answers: int, number: int, line: str) -> None:
    # A line that is short is written at once, and not mixed with that of another process.
    os.write(answers, json.dumps((number, compile_request(line)[-500:])).encode() + b"\n")


def compile_request(line: str) -> str:
    """Return what went wrong, if anything."""
    try:
        compile_kernel(*json.loads(line))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def compile_kernel(module: str, name: str, specialization: str, target: list[str | int]) -> None:
    """Compile a kernel for ``target``, unless Triton's cache has it."""
    # Triton keys its caches by device name, so a driver for each request costs nothing.
    driver.set_active(TargetDriver(GPUTarget(*target)))
    getattr(import_module(module), name).preload(specialization)


if __name__ == "__main__":
    main()
