"""Runs a program for a replica: ``python -m realtime.cluster.child SIGNAL PROGRAM [ARGUMENT ...]``.

The program outlives its replica for as long as it drains. It gets SIGNAL when standard input ends, which it does when
the replica closes it or dies, and also when this process is killed. So a lost replica cuts no reply, and leaves no
program behind.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

PR_SET_PDEATHSIG = 1
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def main(argv: list[str]) -> int:
    """Run the program to its end; returns its exit status."""
    number = signal.Signals[argv[0]]
    program = subprocess.Popen(argv[1:], stdin=subprocess.DEVNULL, preexec_fn=_signaled_at_parents_death(number))

    def drain(*_: object) -> None:
        with suppress(ProcessLookupError):
            program.send_signal(number)

    for stop in STOP_SIGNALS:
        signal.signal(stop, drain)
    threading.Thread(target=_wait_for_end_of_input, args=(drain,), daemon=True).start()
    status = program.wait()
    return 128 - status if status < 0 else status


def _signaled_at_parents_death(number: int) -> Callable[[], None]:
    libc = ctypes.CDLL(None)
    parent = os.getpid()

    def prepare() -> None:
        libc.prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != parent:  # it died before
            os.kill(os.getpid(), number)

    return prepare


def _wait_for_end_of_input(drain: Callable[[], None]) -> None:
    while os.read(0, 1_024):
        pass
    drain()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
