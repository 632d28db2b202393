#!/usr/bin/env python3
"""Print a software bill of materials of a lock file, as CycloneDX 1.6 in JSON: ``.ci/sbom.py requirements-cpu.lock``.

Packages that only the tests need have the scope ``excluded``. The same lock gives the same bytes.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
ENTRY = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;]+)(?: ; (.*?))?(?: \\)?$")
HASH = re.compile(r"^ +--hash=sha256:([0-9a-f]{64})")
VIA = re.compile(r"^ +# via (.+)$")
# How a lock names what requires a package directly: for the server, or for its tests.
SERVER, TESTS = "voicewire (pyproject.toml)", "voicewire (pyproject.toml:test)"


class Package(NamedTuple):
    name: str
    version: str
    marker: str
    hashes: list[str]
    # Packages that require it.
    parents: list[str]

    @property
    def url(self) -> str:
        return f"pkg:pypi/{self.name}@{self.version.replace('+', '%2B')}"


def read_packages(text: str) -> Iterator[Package]:
    package = None
    for line in text.splitlines():
        if found := ENTRY.match(line):
            if package is not None:
                yield package
            package = Package(found[1].lower(), found[2], found[3] or "", [], [])
        elif package is not None and (found := HASH.match(line)):
            package.hashes.append(found[1])
        elif package is not None and (found := VIA.match(line)):
            package.parents.extend(name for name in found[1].split(", ") if not name.startswith("-c "))
    if package is not None:
        yield package


def find_runtime(packages: list[Package]) -> set[str]:
    """Return the names of what the server needs. A package without a line of its parents is required directly."""
    needed = {package.name for package in packages if SERVER in package.parents or not package.parents}
    while more := {one.name for one in packages if needed & set(one.parents)} - needed:
        needed |= more
    return needed


def describe(package: Package, is_runtime: bool) -> dict[str, Any]:
    return {
        "type": "library",
        "bom-ref": package.url,
        "name": package.name,
        "version": package.version,
        "scope": "required" if is_runtime else "excluded",
        # One for each file of the release; one of them is installed.
        "hashes": [{"alg": "SHA-256", "content": content} for content in package.hashes],
        "purl": package.url,
        "properties": [{"name": "voicewire:marker", "value": package.marker}] if package.marker else [],
    }


def build_bom(text: str, version: str) -> dict[str, Any]:
    packages = list(read_packages(text))
    runtime, root = find_runtime(packages), f"pkg:pypi/voicewire@{version}"
    children: dict[str, set[str]] = {root: {one.url for one in packages if one.name in runtime and is_direct(one)}}
    # Some packages have two versions, by marker.
    urls: dict[str, list[str]] = {}
    for package in packages:
        urls.setdefault(package.name, []).append(package.url)
    for package in packages:
        children.setdefault(package.url, set())
        for parent in (url for name in package.parents for url in urls.get(name, ())):
            children.setdefault(parent, set()).add(package.url)
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, version + text)}",
        "version": 1,
        "metadata": {"component": {"type": "application", "bom-ref": root, "name": "voicewire", "version": version}},
        "components": [describe(package, package.name in runtime) for package in packages],
        "dependencies": [{"ref": ref, "dependsOn": sorted(found)} for ref, found in sorted(children.items())],
    }


def is_direct(package: Package) -> bool:
    return SERVER in package.parents or not package.parents


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: .ci/sbom.py LOCK_FILE", file=sys.stderr)
        return 2
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    print(json.dumps(build_bom(Path(sys.argv[1]).read_text(), version), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
