"""The set-up script, without its downloads."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LOCKS = ("requirements-cpu.lock", "requirements-cuda.lock")
UV = re.search(r"^uv=(\S+)$", (ROOT / "run").read_text(), re.MULTILINE)[1]


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A folder with the script and what it reads, and no environment."""
    for name in ("run", "pyproject.toml", *LOCKS):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


@pytest.fixture
def environment(checkout) -> Path:
    """The environment of the checkout, up to date by its stamp; its ``voicewire`` tells how it was called."""
    programs = checkout / ".venv" / "bin"
    programs.mkdir(parents=True)
    install(programs / "voicewire", 'echo "$PWD: $@ ($OMP_WAIT_POLICY)"')
    install(programs / "python", f'echo "$@" >> $(dirname "$0")/../called; [ "$1 $2" = "-m uv" ] && echo "uv {UV}"')
    files = [checkout / name for name in ("pyproject.toml", "run", *LOCKS)]
    sums = subprocess.run(["cksum", *files], capture_output=True, check=True)
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


@pytest.mark.parametrize("changed", ["run", "pyproject.toml", *LOCKS])
def test_a_change_of_the_project_is_installed_before_it_runs(checkout, environment, changed):
    with (checkout / changed).open("a") as file:
        file.write("\n# changed\n")
    assert run(checkout, "voices").stdout == "/: voices (PASSIVE)\n"
    assert f"--editable {checkout}" in (environment / "called").read_text()
    (environment / "called").unlink()
    run(checkout, "voices")
    assert not (environment / "called").exists()


@pytest.fixture
def uv_calls(checkout, environment) -> Path:
    """Every installation in an environment that is not set up: what uv is given, a line each."""
    (environment / ".set-up-app").unlink()
    calls = checkout / "uv-calls"
    seen = "$UV_TORCH_BACKEND|$UV_FIND_LINKS|$UV_DEFAULT_INDEX|$UV_INDEX|$SSL_CERT_FILE"
    script = f"""case "$*" in
        *"pip config get :env:.$SETTING") echo "$VALUE" ;;
        *"pip config get"*) exit 1 ;;
        *"uv --version") echo "uv {UV} (a build)" ;;
        *) echo "$@ {seen}" >> {calls}; case "$*" in *"$FAILS"*) exit 1 ;; esac ;;
    esac"""
    install(environment / "bin" / "python", script)
    return calls


NO_SETTINGS = dict.fromkeys(["UV_FIND_LINKS", "UV_DEFAULT_INDEX", "UV_INDEX", "SSL_CERT_FILE"], "")
WITHOUT_PIP_SETTINGS = {"SETTING": "none", "VALUE": "", "FAILS": "never", **NO_SETTINGS}


@pytest.mark.parametrize(
    ("setting", "value", "handed"),
    [
        ("find-links", "{wheels} /no/such/folder", "|{wheels}|||"),
        ("index-url", "https://mirror.test/simple", "cpu||https://mirror.test/simple||"),
        ("extra-index-url", "https://a.test https://b.test", "cpu|||https://a.test https://b.test|"),
        ("cert", "/etc/mirror.pem", "cpu||||/etc/mirror.pem"),
    ],
)
def test_pip_settings_are_handed_to_uv(checkout, uv_calls, without_gpu, setting, value, handed):
    wheels = checkout / "wheels"
    wheels.mkdir()
    settings = WITHOUT_PIP_SETTINGS | {"SETTING": setting, "VALUE": value.format(wheels=wheels)}
    assert run(checkout, "voices", **settings).returncode == 0
    assert uv_calls.read_text().splitlines()[-1].endswith(" " + handed.format(wheels=wheels))


@pytest.fixture
def without_gpu() -> None:
    if Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi"):
        pytest.skip("this machine has an NVIDIA driver")


def locks_of(uv_calls: Path) -> list[str]:
    return re.findall(r"--constraint \S+/(\S+)", uv_calls.read_text())


def test_locked_versions_are_installed_without_gpu(checkout, uv_calls, without_gpu):
    assert run(checkout, "voices", **WITHOUT_PIP_SETTINGS).returncode == 0
    assert locks_of(uv_calls) == ["requirements-cpu.lock"]
    assert "--group" not in uv_calls.read_text()


def test_locked_versions_are_installed_with_gpu(checkout, uv_calls):
    install(checkout / "nvidia-smi", "true")
    settings = WITHOUT_PIP_SETTINGS | {"PATH": f"{checkout}:{os.environ['PATH']}"}
    assert run(checkout, "voices", **settings).returncode == 0
    assert locks_of(uv_calls) == ["requirements-cuda.lock"]


def test_missing_cpu_build_falls_back_to_default_build(checkout, uv_calls, without_gpu):
    result = run(checkout, "voices", **WITHOUT_PIP_SETTINGS | {"FAILS": "requirements-cpu.lock"})
    assert result.returncode == 0
    assert "No CPU build of torch within reach" in result.stderr
    assert locks_of(uv_calls)[-1] == "requirements-cuda.lock"


def test_failed_installation_is_not_taken_for_done(checkout, uv_calls):
    for _ in range(2):
        assert run(checkout, "voices", **WITHOUT_PIP_SETTINGS | {"FAILS": "pip install"}).returncode != 0
    assert not (checkout / ".venv" / ".set-up-app").exists()


@pytest.mark.parametrize(("num_cores", "num_processes"), [(1, 2), (2, 2), (3, 3), (64, 4)])
def test_full_run_uses_many_processes_and_partial_run_one(checkout, environment, num_cores, num_processes):
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
