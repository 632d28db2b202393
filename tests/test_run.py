"""The set-up script, without its downloads."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A folder with the script and what it reads, and no environment."""
    for name in ("run", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


@pytest.fixture
def environment(checkout) -> Path:
    """The environment of the checkout, up to date by its stamp; its ``voicewire`` tells how it was called."""
    programs = checkout / ".venv" / "bin"
    programs.mkdir(parents=True)
    install(programs / "voicewire", 'echo "$PWD: $@ ($OMP_WAIT_POLICY)"')
    install(programs / "python", 'echo "$@" >> $(dirname "$0")/../called; [ "$1 $2" = "-m uv" ]')
    sums = subprocess.run(["cksum", checkout / "pyproject.toml", checkout / "run"], capture_output=True, check=True)
    (checkout / ".venv" / ".set-up-app").write_bytes(sums.stdout)
    return checkout / ".venv"


def install(program: Path, script: str) -> Path:
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program


def run(checkout: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [checkout / "run", *arguments], cwd="/", env=os.environ | variables, capture_output=True, text=True, check=False
    )


def test_an_old_python_is_named_and_nothing_is_made(checkout):
    old = install(checkout / "old-python", 'echo "Python 3.9.2"; exit 1')
    result = run(checkout, "serve", PYTHON=str(old))
    assert result.returncode == 1
    assert f"Python 3.11 or newer is needed; {old} is Python 3.9.2" in result.stderr
    assert not (checkout / ".venv").exists()


def test_an_environment_that_is_up_to_date_is_used_as_it_is(checkout, environment):
    result = run(checkout, "say", "two words", "-o", "x.wav")
    assert (result.stdout, result.returncode) == ("/: say two words -o x.wav (PASSIVE)\n", 0)
    assert not (environment / "called").exists()


@pytest.mark.parametrize("changed", ["run", "pyproject.toml"])
def test_a_change_of_the_project_is_installed_before_it_runs(checkout, environment, changed):
    with (checkout / changed).open("a") as file:
        file.write("\n# changed\n")
    assert run(checkout, "voices").stdout == "/: voices (PASSIVE)\n"
    assert f"--editable {checkout}" in (environment / "called").read_text()
    (environment / "called").unlink()
    run(checkout, "voices")
    assert not (environment / "called").exists()


def test_the_wheel_folder_that_pip_knows_is_handed_to_uv(checkout, environment):
    (environment / ".set-up-app").unlink()
    wheels = checkout / "wheels"
    wheels.mkdir()
    pip = f'*:env:*) echo "{wheels} /no/such/folder"'
    uv = f'*uv*) echo "$UV_FIND_LINKS" >> {checkout}/links'
    install(environment / "bin" / "python", f'case "$*" in {pip};; {uv};; esac')
    assert run(checkout, "voices", UV_FIND_LINKS="").returncode == 0
    assert (checkout / "links").read_text().splitlines()[-1] == str(wheels)


@pytest.mark.parametrize(("num_cores", "num_processes"), [(1, 2), (2, 2), (3, 3), (64, 4)])
def test_everything_is_tested_in_several_processes_and_a_part_in_one(checkout, environment, num_cores, num_processes):
    install(checkout / "nproc", f"echo {num_cores}")
    path = f"{checkout}:{os.environ['PATH']}"
    (environment / ".set-up-app").rename(environment / ".set-up-test")
    for name in ("ruff", "mypy", "lint-imports", "pytest"):
        install(environment / "bin" / name, f'echo "{name} $@$PYTHONDONTWRITEBYTECODE"; [ {name} != pytest ] || exit 5')
    whole = run(checkout, "test", PATH=path, PYTHONDONTWRITEBYTECODE="1")
    part = run(checkout, "test", "tests/x", "-k", "y")
    assert [line.split()[0] for line in whole.stdout.splitlines()] == ["ruff", "ruff", "mypy", "lint-imports", "pytest"]
    assert whole.stdout.endswith(f"\npytest --numprocesses {num_processes} --dist worksteal\n")
    assert (part.stdout, part.returncode, whole.returncode) == ("pytest tests/x -k y\n", 5, 5)


def test_help_needs_no_environment(checkout):
    result = run(checkout, "help")
    assert result.returncode == 0
    assert "./run test" in result.stdout
    assert not (checkout / ".venv").exists()
