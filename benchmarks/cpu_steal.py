"""Take a share of some cores away, in short turns at real-time priority, like another busy program.

    python -m benchmarks.cpu_steal --cores 0-1 --percent 15

Runs until it is terminated or its parent process ends. It needs the right to set real-time priorities.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from multiprocessing import get_context

from benchmarks.gateway_cpu import cores

# Shorter than any measured time, so that the server is slower but never stops.
ROUND_S = 0.0004
PRIORITY = 1
LOOK_S = 0.5
MAX_PERCENT = 90
AT_WORK = "at work"


def run_steal(core: int, share: float, parent: int) -> None:
    """Take CPU time until the parent process ends."""
    os.sched_setaffinity(0, {core})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    due_s = time.perf_counter()
    while os.getppid() == parent:
        for _ in range(round(LOOK_S / ROUND_S)):
            end_s = time.perf_counter() + share * ROUND_S
            while time.perf_counter() < end_s:
                pass
            due_s = max(due_s + ROUND_S, time.perf_counter())
            time.sleep(max(due_s - time.perf_counter(), 0.0))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cores", type=cores, required=True)
    parser.add_argument("--percent", type=percent_of_a_core, required=True)
    parser.add_argument("--parent", type=int, default=os.getppid(), help="end with this process")
    args = parser.parse_args()
    fork = get_context("fork")
    thieves = [fork.Process(target=run_steal, args=(core, args.percent / 100, os.getpid())) for core in args.cores]
    for thief in thieves:
        thief.daemon = True
        thief.start()
    time.sleep(LOOK_S)
    if not all(thief.is_alive() for thief in thieves):
        sys.exit("real-time priority is not to be had")
    print(AT_WORK, flush=True)
    while os.getppid() == args.parent:
        time.sleep(LOOK_S)


def percent_of_a_core(text: str) -> float:
    percent = float(text)
    if not 0 <= percent <= MAX_PERCENT:
        raise argparse.ArgumentTypeError(f"{percent} % of a core; it must lie in 0..{MAX_PERCENT}")
    return percent


if __name__ == "__main__":
    main()
