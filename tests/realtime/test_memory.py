from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from realtime.memory import resident_bytes


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
