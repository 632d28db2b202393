"""``voicewire doctor``: what is missing on this machine, and how to get it."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from safetensors import safe_open

from engine.api import CheckpointError, CheckpointReport
from realtime.commands.streams import PLAYERS, find_player
from realtime.engine_factory import add_model_argument, inspect_checkpoint
from sessions.audio.opus_library import OpusUnavailable, describe

INDEX = "model.safetensors.index.json"
# Such a folder is read as a whole, by its own family.
COSYVOICE3_FILE = "cosyvoice3.yaml"


class CheckResult(NamedTuple):
    subject: str
    present: bool
    detail: str
    fix: str = ""
    required: bool = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_argument(parser)


def run(args: argparse.Namespace) -> int:
    findings = list(run_checks(args.model))
    print("\n".join(map(line, findings)))
    return int(any(finding.required and not finding.present for finding in findings))


def line(finding: CheckResult) -> str:
    mark = "ok     " if finding.present else "MISSING" if finding.required else "absent "
    remedy = "" if finding.present or not finding.fix else f" -> {finding.fix}"
    return f"{mark} {finding.subject}: {finding.detail}{remedy}"


def run_checks(model: Path | None) -> Iterator[CheckResult]:
    yield python()
    yield torch()
    yield opus()
    yield checkpoint(model or embedded_voice())
    yield player()
    yield program("flite", "a second voice, for tests")
    yield program("mosquitto", "an MQTT broker, for tests of the MQTT transport")
    yield program("chromium", "a browser, for tests of the page")
    yield package("av", "mp3, aac, flac and m4a output")


def python() -> CheckResult:
    detail = f"{platform.python_version()} at {sys.executable}"
    return CheckResult("python", sys.version_info >= (3, 11), detail, "install Python 3.11 or newer")


def torch() -> CheckResult:
    remedy = "delete .venv and start ./run again, or pip install torch"
    try:
        import torch
    except (ImportError, OSError) as error:
        return CheckResult("torch", False, str(error), remedy)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no CUDA device"
    return CheckResult("torch", True, f"{torch.__version__}, {torch.get_num_threads()} threads, {device}")


def opus() -> CheckResult:
    try:
        library = describe()
    except OpusUnavailable as error:
        return CheckResult("libopus", False, str(error))
    return CheckResult("libopus", True, f"{library.version} at {library.path}")


def embedded_voice() -> Path:
    return Path(str(files("engine"))) / "voices" / "embedded"


def checkpoint(folder: Path) -> CheckResult:
    """The files first, which needs no torch, then every key and tensor."""
    name, remedy = "config.json", "name another folder with --model"
    try:
        for name in checkpoint_files(folder) if folder.exists() else ():
            check_readable(folder / name)
    except Exception as error:
        return CheckResult("checkpoint", False, f"{name}: {error}", remedy)
    try:
        return CheckResult("checkpoint", True, f"{folder}: {describe_checkpoint(inspect_checkpoint(folder))}")
    except (CheckpointError, ImportError) as error:
        return CheckResult("checkpoint", False, str(error), remedy)


def describe_checkpoint(report: CheckpointReport) -> str:
    """Describe the features and the size of a checkpoint in one line."""
    parts = ", ".join(f"{name} {megabytes:g} MB" for name, megabytes in report.megabytes.items())
    voices = f"voices {', '.join(report.voices)}" if report.voices else "no voices of its own"
    instruct = "takes instructions" if report.takes_instruct else "takes no instructions"
    languages = f"languages auto, {', '.join(report.languages)}"
    return "; ".join((report.model, parts, voices, languages, instruct, *report.notes))


def checkpoint_files(folder: Path) -> Iterator[str]:
    """List the files of an embedded voice's folder; weights are one file, or an index and the shards it names."""
    if (folder / COSYVOICE3_FILE).exists():
        return
    for subfolder in ("", "speech_tokenizer/"):
        yield f"{subfolder}config.json"
        if not (folder / subfolder / INDEX).exists():
            yield f"{subfolder}model.safetensors"
            continue
        yield f"{subfolder}{INDEX}"
        index = json.loads((folder / subfolder / INDEX).read_text(encoding="utf-8"))
        yield from (f"{subfolder}{shard}" for shard in sorted(set(index["weight_map"].values())))


def check_readable(path: Path) -> None:
    """Open a weight file; raises the exceptions of its format's reader."""
    if path.suffix == ".json":
        json.loads(path.read_text(encoding="utf-8"))
    else:
        with safe_open(path, framework="numpy"):
            pass


def player() -> CheckResult:
    found = find_player()
    detail = found or f"none of {', '.join(PLAYERS)}"
    return CheckResult(
        "player", found is not None, detail, "apt install alsa-utils; -o writes a file without one", False
    )


def program(name: str, purpose: str) -> CheckResult:
    path = shutil.which(name, path=os.environ.get("PATH", os.defpath) + os.pathsep + "/usr/sbin")
    return CheckResult(name, path is not None, path or purpose, f"apt install {name}", required=False)


def package(name: str, purpose: str) -> CheckResult:
    try:
        return CheckResult(name, True, version(name), required=False)
    except PackageNotFoundError:
        return CheckResult(name, False, purpose, f"pip install {name}", required=False)
