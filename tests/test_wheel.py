"""The wheel holds everything that running needs, and nothing else."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import wave
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.realtime.server_process import wire_address

ROOT = Path(__file__).parent.parent
SOURCES = ("engine", "realtime", "sessions", "web_client", "pyproject.toml", "README.md", "LICENSE", "NOTICE")
MARK_SETTING = "VOICEWIRE_WATERMARK_ENABLED"
# In one process: each command that speaks imports torch, which takes a second.
# A line with its name is printed behind the output of each command.
RUN_ALL = """
import json, sys
from realtime.cli import main
for command in json.loads(sys.argv[1]):
    if status := main(command):
        sys.exit(status)
    print("#", command[0])
"""
EMBEDDED_VOICE = ROOT / "engine" / "voices" / "embedded"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built in a copy, so that nothing is left behind in the checkout."""
    copy = tmp_path_factory.mktemp("source")
    for name in filter(lambda name: (ROOT / name).exists(), SOURCES):
        source, target = ROOT / name, copy / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    build = "from setuptools.build_meta import build_wheel; build_wheel('.')"
    subprocess.run([sys.executable, "-c", build], cwd=copy, stdout=subprocess.DEVNULL, check=True)
    return next(copy.glob("voicewire-*.whl"))


def test_it_holds_the_packages_the_licence_and_the_command(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
        info = metadata.removesuffix("METADATA")
        assert {name.split("/")[0] for name in names} == {
            "engine",
            "realtime",
            "sessions",
            "web_client",
            info.rstrip("/"),
        }
        assert {f"{info}licenses/LICENSE", f"{info}licenses/NOTICE"} <= set(names)
        assert b"voicewire = realtime.cli:main" in archive.read(f"{info}entry_points.txt")
        assert b"Requires-Python: >=3.11" in archive.read(metadata)


def test_every_module_and_data_file_of_the_packages_is_in_it(wheel):
    if shutil.which("git") is None:
        pytest.skip("no git here")
    command = ["git", "ls-files", "engine", "realtime", "sessions", "web_client"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if listing.returncode:
        pytest.skip("not a git checkout")
    with zipfile.ZipFile(wheel) as archive:
        assert set(listing.stdout.decode().split()) <= set(archive.namelist())


def test_the_page_is_found_where_the_wheel_puts_it(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = "from realtime.transports.http_routes import PAGE; print(PAGE); assert (PAGE / 'ui' / 'main.js').is_file()"
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    found = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, check=True)
    assert found.stdout.decode().strip() == str(tmp_path / "web_client")


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """Programs of an environment that holds the wheel, and finds its dependencies by their folder."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--no-compile", wheel], env=outside(), check=True)
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("platlib"))
    return folder / "bin"


def outside() -> dict[str, str]:
    """The environment of a user: the defaults hold."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", MARK_SETTING)}


@contextmanager
def serving(program: Path, folder: Path) -> Iterator[str]:
    """The address of a server of the installed program."""
    command = [program, "serve", "--set", "listen.port=0"]
    with subprocess.Popen(command, cwd=folder, env=outside(), stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            yield wire_address(server.stdout)
        finally:
            server.terminate()


@pytest.mark.timeout(240)
def test_every_command_runs_from_an_installed_wheel(installed, tmp_path):
    def run(*arguments: str) -> str:
        command = [installed / "voicewire", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=outside(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    place = [installed / "python", "-c", "import realtime; print(realtime.__file__)"]
    found = subprocess.run(place, cwd=tmp_path, env=outside(), capture_output=True, text=True, check=True).stdout
    assert Path(found.strip()).is_relative_to(installed.parent)

    commands = re.findall(r"^    (\w+) ", run("--help"), re.MULTILINE)
    assert commands == ["say", "serve", "engine", "cluster", "bench", "voices", "detect", "doctor"]
    for command in ("engine", "cluster"):
        assert f"usage: voicewire {command}" in run(command, "--help")
    text = "Hello there, this is a recording that is long enough to hold a mark."
    speaking = ["say", text, "-o", "mark.wav", "--seed", "1"]
    commands = [["doctor"], ["voices"], speaking, ["detect", "mark.wav", "--json"]]
    together = subprocess.run(
        [installed / "python", "-c", RUN_ALL, json.dumps(commands)], cwd=tmp_path, env=outside(), capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert "ok      checkpoint: " in together.stdout
    assert "clara" in together.stdout.partition("# doctor")[2].partition("# voices")[0]
    with wave.open(str(tmp_path / "mark.wav")) as speech:
        assert 2 < speech.getnframes() / speech.getframerate() < 8
    assert json.loads(together.stdout.splitlines()[-2])["marked"]
    with serving(installed / "voicewire", tmp_path) as address:
        report = run("bench", "--url", address, "--responses", "1", "--no-cancel", "--burst", "--json")
    assert json.loads(report)["responses"] == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_speaks_from_an_empty_environment(tmp_path):
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    environment = outside() | {"PYTHONS": sys.executable}
    found = subprocess.run([ROOT / ".ci" / "release", tmp_path], env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "The release works on Pythons: 1\n" in found.stdout
