"""Processes of tests, forked from one that has imported their modules: the imports alone cost a second each time.

Run as ``python -m tests.fork_server MODULE...`` with a socket as standard input. An order names a module, whose
``main`` runs in a new process.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, NamedTuple

MAX_ORDER_BYTES = 1 << 17
NUMBER = struct.Struct("i")
# Of the new process.
STANDARD_FILES = (0, 1, 2)
MAX_FILES = 4096


class Order(NamedTuple):
    module: str
    arguments: Sequence[str]
    folder: str
    env: dict[str, str]


class ForkedProcess:
    """A process that is no child of this one, with what tests need of ``subprocess.Popen``."""

    def __init__(self, pid: int, status: int, stdout: IO[bytes] | None, stderr: IO[bytes] | None) -> None:
        self.pid, self.stdout, self.stderr = pid, stdout, stderr
        self.returncode: int | None = None
        self._selector = selectors.DefaultSelector()
        self._selector.register(status, selectors.EVENT_READ)
        self._status = status

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout_s: float | None = None) -> int:
        """Return the exit status, negative for a signal. Raises ``subprocess.TimeoutExpired``."""
        if self.returncode is None:
            if not self._selector.select(timeout_s):
                raise subprocess.TimeoutExpired(str(self.pid), timeout_s or 0)
            (status,) = NUMBER.unpack(os.read(self._status, NUMBER.size))
            self.returncode = os.waitstatus_to_exitcode(status)
            self._selector.close()
            os.close(self._status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self) -> tuple[bytes, bytes]:
        """Return all output and errors of a process that writes few of both."""
        output, errors = (stream.read() if stream else b"" for stream in (self.stdout, self.stderr))
        self.close()
        return output, errors

    def close(self) -> None:
        """Wait for its end, and close its streams."""
        self.wait()
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()


class ForkServer:
    """Starts when the first process is asked for, and ends with this process."""

    def __init__(self, *modules: str) -> None:
        """``modules`` are imported in advance."""
        self._modules = modules
        self._control: socket.socket | None = None
        self._lock = threading.Lock()

    def start(
        self,
        module: str,
        *arguments: str,
        stdout: int | None = None,
        stderr: int | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> ForkedProcess:
        """Run ``main`` of a module in a process of its own, with options like those of ``Popen``."""
        with contextlib.ExitStack() as given:
            (out, out_stream), (errors, error_stream) = _output(1, stdout, given), _output(2, stderr, given)
            status, report = os.pipe()
            given.callback(os.close, report)
            order = Order(module, arguments, str(cwd or Path.cwd()), dict(os.environ if env is None else env))
            with self._lock:
                control = self._open()
                socket.send_fds(control, [json.dumps(order).encode()], [_nothing(given), out, errors, report])
                (pid,) = NUMBER.unpack(control.recv(NUMBER.size))
        return ForkedProcess(pid, status, out_stream, error_stream)

    def _open(self) -> socket.socket:
        if self._control is None:
            self._control, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            command = [sys.executable, "-m", "tests.fork_server", *self._modules]
            with far:
                process = subprocess.Popen(command, stdin=far, stdout=subprocess.DEVNULL)
            atexit.register(self._close, self._control, process)
        return self._control

    @staticmethod
    def _close(control: socket.socket, process: subprocess.Popen[bytes]) -> None:
        control.close()
        process.wait()


@cache
def fork_server(*modules: str) -> ForkServer:
    """Return the one of this test process for ``modules``."""
    return ForkServer(*modules)


def _output(number: int, how: int | None, given: contextlib.ExitStack) -> tuple[int, IO[bytes] | None]:
    """Return the file of a new process, closed with ``given``, and the end of it that is read here."""
    if how is None:
        return number, None
    if how == subprocess.DEVNULL:
        return _nothing(given), None
    if how != subprocess.PIPE:
        return how, None
    reading, writing = os.pipe()
    given.callback(os.close, writing)
    return writing, os.fdopen(reading, "rb")


def _nothing(given: contextlib.ExitStack) -> int:
    file = os.open(os.devnull, os.O_RDWR)
    given.callback(os.close, file)
    return file


def serve(control: socket.socket) -> Order | None:
    """Fork for each order: returns it in the new process, and nothing once the other end is closed."""
    reports: dict[int, tuple[int, int]] = {}  # by the descriptor of a process: its id, and where its end is reported
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd in reports:
                    selector.unregister(key.fd)
                    pid, report = reports.pop(key.fd)
                    with contextlib.suppress(BrokenPipeError):
                        os.write(report, NUMBER.pack(os.waitpid(pid, 0)[1]))
                    os.close(report)
                    os.close(key.fd)
                    continue
                message, files, _, _ = socket.recv_fds(control, MAX_ORDER_BYTES, len(STANDARD_FILES) + 1)
                if not message:
                    for pid, _ in reports.values():
                        os.kill(pid, signal.SIGKILL)
                    return None
                *standard, report = files
                if not (pid := os.fork()):
                    for file, place in zip(standard, STANDARD_FILES, strict=True):
                        os.dup2(file, place)
                    return Order(*json.loads(message))
                for file in standard:
                    os.close(file)
                descriptor = os.pidfd_open(pid)
                reports[descriptor] = pid, report
                selector.register(descriptor, selectors.EVENT_READ)
                control.send(NUMBER.pack(pid))


def main() -> None:
    for module in sys.argv[1:]:
        importlib.import_module(module)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the tests end it
    control = socket.socket(fileno=os.dup(0))
    order = serve(control)
    control.detach()
    if order is None:
        return
    os.closerange(len(STANDARD_FILES), MAX_FILES)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(order.env)
    os.chdir(order.folder)
    sys.argv = [order.module, *order.arguments]
    sys.exit(importlib.import_module(order.module).main())


if __name__ == "__main__":
    main()
