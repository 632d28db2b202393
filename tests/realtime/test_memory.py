from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from benchmarks.connection_memory import Load, one_round
from realtime.memory import resident_bytes
from tests.realtime.server_process import server


def test_a_child_counts_as_long_as_it_lives() -> None:
    alone = resident_bytes(os.getpid())
    assert alone == pytest.approx(psutil.Process().memory_info().rss, rel=0.05)
    code = "held = bytearray(b'x') * 50_000_000; print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        together = resident_bytes(os.getpid())
        child.kill()
    assert together - alone > 50_000_000
    assert resident_bytes(os.getpid()) - alone < 20_000_000


async def test_memory_of_closed_connections_returns_to_the_system() -> None:
    """Without a call to the allocator two thirds would stay; of later rounds hardly anything stays more."""
    with server(log__level="error") as running:
        found = await one_round(running, Load(num_connections=30))
    assert found.full_mb - found.before_mb > 20
    assert found.after_mb - found.before_mb < 0.55 * (found.full_mb - found.before_mb)
