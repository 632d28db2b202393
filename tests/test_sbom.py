"""The bill of materials has each locked package with its hashes and its scope."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.test_project import LOCKS, ROOT, read_lock

SCRIPT = ROOT / ".ci" / "sbom.py"


def build(lock: Path) -> str:
    return subprocess.run([sys.executable, SCRIPT, lock], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_bill_names_every_locked_package(lock: Path) -> None:
    text = build(lock)
    bom = json.loads(text)
    locked = {
        (canonicalize_name(entry.name), next(iter(entry.specifier)).version): [found[7:71] for found in hashes]
        for entry, hashes in read_lock(lock)
    }
    named = {(one["name"], one["version"]): [found["content"] for found in one["hashes"]] for one in bom["components"]}
    assert named == locked
    assert text == build(lock), "not the same bytes again"
    refs = [one["bom-ref"] for one in bom["components"]]
    assert len(set(refs)) == len(refs)
    root = bom["metadata"]["component"]["bom-ref"]
    assert {one["ref"] for one in bom["dependencies"]} == {root, *refs}
    assert {child for one in bom["dependencies"] for child in one["dependsOn"]} <= set(refs)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_packages_of_the_server_are_required(lock: Path) -> None:
    bom = json.loads(build(lock))
    scopes = {one["name"]: one["scope"] for one in bom["components"]}
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {canonicalize_name(Requirement(requirement).name) for requirement in dependencies}
    assert {scopes[name] for name in names} == {"required"}
    assert {scopes[name] for name in ("pytest", "ruff", "playwright", "transformers")} == {"excluded"}
    assert scopes["anyio"] == "required"  # of starlette


def test_wrong_call_is_explained() -> None:
    found = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (2, "usage: .ci/sbom.py LOCK_FILE\n")
