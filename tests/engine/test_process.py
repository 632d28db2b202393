"""Garbage collection policy, temporary folder and cores of a process."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.loop import EngineLoop
from engine.process import (
    PREFIX,
    RunDirectory,
    available_cores,
    child_environment,
    collect_young,
    freeze_gc,
    is_gc_frozen,
)
from engine.runtime.engine import Engine

MAKES_ONE = (
    "import sys, tempfile; tempfile.tempdir = sys.argv[1];"
    "from engine.process import RunDirectory; folder = RunDirectory(); folder.make();"
    "(folder.path / 'engine.sock').touch(); print(folder.path, flush=True); sys.stdin.read(); folder.remove()"
)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@contextmanager
def maker(temporary: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A process that has made one."""
    command = [sys.executable, "-c", MAKES_ONE, str(temporary)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        path = Path(process.stdout.readline().decode().strip())
        assert path.is_dir()
        yield process, path


def test_files_of_killed_processes_are_removed_and_no_others(temporary: Path) -> None:
    with maker(temporary) as (killed, left), maker(temporary) as (_, held):
        killed.kill()
        killed.wait()
        assert left.is_dir()
        mine = RunDirectory()
        mine.make()
        assert set(temporary.iterdir()) == {held, mine.path}
        assert mine.path.stat().st_mode & 0o777 == 0o700
        mine.remove()
    assert list(temporary.iterdir()) == [], "a process that ends by itself leaves nothing"


def test_nothing_else_is_touched(temporary: Path) -> None:
    others = temporary / "voicewire-of-somebody"
    (others / "kept").mkdir(parents=True)
    (temporary / f"{PREFIX}link").symlink_to(others)
    (temporary / f"{PREFIX}file").touch()
    before = set(temporary.rglob("*"))
    mine = RunDirectory()
    mine.make()
    mine.remove()
    assert set(temporary.rglob("*")) == before


def test_it_is_made_once(temporary: Path) -> None:
    mine = RunDirectory()
    mine.make()
    (mine.path / "engine.sock").touch()
    mine.make()
    assert (mine.path / "engine.sock").exists()
    mine.remove()
    mine.remove()
    assert list(temporary.iterdir()) == []


def test_removed_folder_is_made_again() -> None:
    folder = RunDirectory()
    folder.make()
    shutil.rmtree(folder.path)
    folder.make()
    assert folder.path.is_dir()
    RunDirectory().make()
    assert folder.path.is_dir(), "it is held"
    folder.remove()
    assert not folder.path.exists()


class Thing:
    other: Thing


class Unmade(Exception):
    pass


@pytest.fixture
def restored_gc() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


@pytest.fixture
def calm(restored_gc: None) -> None:
    freeze_gc()


def a_cycle() -> weakref.ref[Thing]:
    thing = Thing()
    thing.other = thing
    return weakref.ref(thing)


def collections_of_the_old() -> int:
    return int(gc.get_stats()[2]["collections"])


@pytest.mark.usefixtures("calm")
def test_the_old_are_looked_through_in_pauses_alone() -> None:
    before, kept = collections_of_the_old(), list[object]()
    for _ in range(100_000):
        kept.append([kept])
    assert collections_of_the_old() == before
    gone = a_cycle()
    collect_young()
    assert gone() is None


@pytest.mark.usefixtures("restored_gc")
def test_full_collections_of_a_server_are_rare_and_those_of_an_engine_stay_so() -> None:
    freeze_gc(full_after=50)
    assert gc.get_threshold()[2] == 50
    freeze_gc()
    freeze_gc(full_after=50)
    assert is_gc_frozen()


def test_default_keeps_python_s_behavior() -> None:
    assert not is_gc_frozen()
    before = collections_of_the_old()
    collect_young()
    assert collections_of_the_old() == before


@pytest.mark.parametrize("is_calm", [True, False])
def test_an_engine_that_died_is_gone_before_another_is_made(is_calm: bool, request: pytest.FixtureRequest) -> None:
    if is_calm:
        request.getfixturevalue("calm")
    died = a_cycle()
    gc.freeze()
    assert died() is not None

    def make_engine() -> Engine:
        assert died() is None
        raise Unmade

    with pytest.raises(Unmade):
        EngineLoop(make_engine, lambda emitted: None, lambda error: None).start()


def test_available_cores_follow_affinity_and_quota(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(64)))
    quota = tmp_path / "cpu.max"
    monkeypatch.setattr("engine.process.CPU_QUOTA", quota)
    for text, num_cores in (("450000 100000\n", 4), ("50000 100000\n", 1), ("max 100000\n", 64)):
        quota.write_text(text)
        assert available_cores() == num_cores
    quota.unlink()
    assert available_cores() == 64


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the size of the table from /proc")
@pytest.mark.parametrize("limit", [256, 4096])
def test_descriptors_that_are_opened_later_find_room(limit: int) -> None:
    program = """
import os, resource, sys, threading
from engine.process import reserve_descriptors
limit = min(int(sys.argv[1]), resource.getrlimit(resource.RLIMIT_NOFILE)[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
reserve_descriptors(1_000)
threading.Thread(target=sys.stdin.read, daemon=True).start()
size = lambda: int(open("/proc/self/status").read().partition("FDSize:")[2].split()[0])
before = size()
opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(min(1_000, limit - 10))]
print(before, size(), limit)
"""
    ran = subprocess.run(
        [sys.executable, "-c", program, str(limit)], env=child_environment(), capture_output=True, text=True, check=True
    )
    before, after, allowed = map(int, ran.stdout.split())
    assert before == after >= min(1_000, allowed)
