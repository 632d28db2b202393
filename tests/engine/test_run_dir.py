"""What a killed process left in the temporary folder goes with the next start, and nothing else does."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.run_dir import PREFIX, RunDirectory

MAKES_ONE = (
    "import sys, tempfile; tempfile.tempdir = sys.argv[1];"
    "from engine.run_dir import RunDirectory; folder = RunDirectory(); folder.make();"
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


def test_what_a_killed_process_left_goes_and_what_a_living_one_has_stays(temporary: Path) -> None:
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


def test_a_folder_that_somebody_else_removed_is_made_again() -> None:
    folder = RunDirectory()
    folder.make()
    shutil.rmtree(folder.path)
    folder.make()
    assert folder.path.is_dir()
    RunDirectory().make()
    assert folder.path.is_dir(), "it is held"
    folder.remove()
    assert not folder.path.exists()
