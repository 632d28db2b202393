"""What holds for the repository as a whole."""

from __future__ import annotations

import ast
import functools
import itertools
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Container, Iterator
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent
PACKAGES = ("engine", "realtime", "sessions")
TOP_LEVEL = {
    *PACKAGES,
    *("benchmarks", "deploy", "docs", "examples", "tests", "training", "web_client"),
    *("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "NOTICE", "README.md", "pyproject.toml", "run"),
    *("requirements-cpu.lock", "requirements-cuda.lock"),
}
# Programs that run in environments of their own (tests/sdk/requirements).
OTHERS = ROOT / "tests" / "sdk" / "clients"
MACHINE_FOLDERS = ("farm", "home", "root", "work")
MACHINE_PATH = re.compile(rf"(?<![\w}}])/(?:{'|'.join(MACHINE_FOLDERS)})/\w")
LINK = re.compile(r"(?<!`)\[[^\]]*\]\(([^)#:\s]*)(?:#([^)\s]+))?\)")
CODE = re.compile(r"^```.*?^```|``.+?``|`[^`\n]*`(?!\])", re.MULTILINE | re.DOTALL)
# One of these words is in each text that one of the two patterns finds.
SUSPECT_WORDS = [*(f"/{folder}/".encode() for folder in MACHINE_FOLDERS)]
SUSPECT_WORDS += [b"pythonhosted", b"pypi", b"npmjs", b"pytorch", b"artifactory"]
REGISTRY_HOST = re.compile(r"pythonhosted\.org|pypi\.org/simple|registry\.npmjs|download\.pytorch\.org|[.]artifactory")


@pytest.fixture(scope="module")
def committed() -> list[Path]:
    if shutil.which("git") is None:
        pytest.skip("no git here")
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listing.stdout.split("\0") if name]


@pytest.fixture(scope="module")
def pyproject() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def groups(pyproject) -> dict[str, list[str]]:
    """Every list of requirements by its name."""
    project = pyproject["project"]
    return {
        "dependencies": project["dependencies"],
        **project["optional-dependencies"],
        **pyproject["dependency-groups"],
    }


@pytest.mark.parametrize("module", ["engine.api", "engine.launch", "sessions", "realtime.cli", "realtime.protocol"])
def test_the_edge_does_not_import_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_the_top_level_holds_only_what_was_decided(committed):
    names = {path.relative_to(ROOT).parts[0] for path in committed}
    assert {name for name in names if not name.startswith(".")} <= TOP_LEVEL


def test_no_committed_file_names_a_machine_or_a_registry(committed):
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in committed
        if path.is_file()
        for data in [path.read_bytes()]
        if any(word in data for word in SUSPECT_WORDS)
        for pattern in (MACHINE_PATH, REGISTRY_HOST)
        for match in pattern.finditer(data.decode("utf-8", errors="ignore"))
    ]
    assert found == []


@pytest.mark.parametrize("folder", MACHINE_FOLDERS)
def test_paths_of_a_machine_are_recognised(folder):
    assert MACHINE_PATH.search(f"see /{folder}/x")


@pytest.mark.parametrize("host", [("files", "pythonhosted", "org"), ("download", "pytorch", "org")])
def test_hosts_of_registries_are_recognised(host):
    assert REGISTRY_HOST.search(f"see https://{'.'.join(host)}/packages")


def test_requirements_are_sorted_and_documented(groups):
    documented = (ROOT / "docs" / "design" / "dependencies.md").read_text()
    for requirements in groups.values():
        names = [Requirement(requirement).name for requirement in requirements]
        assert names == sorted(names)
        assert [name for name in names if f"`{name}`" not in documented] == []


def test_every_requirement_has_a_tested_range(groups):
    for requirement in [requirement for requirements in groups.values() for requirement in requirements]:
        operators = {specifier.operator for specifier in Requirement(requirement).specifier}
        assert operators in ({"=="}, {">=", "<"}), requirement


LOCKS = [ROOT / f"requirements-{kind}.lock" for kind in ("cpu", "cuda")]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
# Its publisher's own index alone has this build.
UNHASHED = {"torch==2.13.0+cpu"}


def read_lock(path: Path) -> list[tuple[Requirement, list[str]]]:
    """The locked packages of a file and their hashes."""
    lines = path.read_text().replace(" \\\n    --hash=", " --hash=").splitlines()
    entries = [re.split(" +--hash=", line) for line in lines if line and line.lstrip()[0] != "#"]
    return [(Requirement(requirement), hashes) for requirement, *hashes in entries]


def locked_versions(path: Path, python: str) -> dict[str, Version]:
    """The versions that a lock has for Linux on x86-64 with this Python."""
    machine = {"platform_machine": "x86_64", "sys_platform": "linux", "platform_python_implementation": "CPython"}
    environment = machine | {"python_version": python, "python_full_version": f"{python}.0"}
    chosen = [entry for entry, _ in read_lock(path) if entry.marker is None or entry.marker.evaluate(environment)]
    versions = {canonicalize_name(entry.name): Version(next(iter(entry.specifier)).version) for entry in chosen}
    assert len(versions) == len(chosen)
    return versions


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
@pytest.mark.parametrize("python", PYTHONS)
def test_locks_hold_every_requirement_within_its_range(lock, python, groups):
    versions = locked_versions(lock, python)
    for requirement in map(Requirement, groups["dependencies"] + groups["test"]):
        assert versions[canonicalize_name(requirement.name)] in requirement.specifier, f"{requirement}: run .ci/lock"


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_locks_pin_versions_and_hashes_and_name_no_address(lock):
    entries = read_lock(lock)
    unhashed = {f"{entry.name}{entry.specifier}" for entry, hashes in entries if not hashes}
    assert unhashed == (UNHASHED if lock.stem.endswith("cpu") else set())
    assert all(re.fullmatch("sha256:[0-9a-f]{64}.*", found) for _, hashes in entries for found in hashes)
    assert "://" not in lock.read_text()


@pytest.mark.parametrize("python", PYTHONS)
def test_locks_differ_in_what_cuda_needs_alone(python):
    cpu, cuda = (locked_versions(lock, python) for lock in LOCKS)
    assert cpu.keys() - cuda.keys() == set()
    assert all(name.startswith(("cuda-", "nvidia-", "triton")) for name in cuda.keys() - cpu.keys())
    assert {name for name in cpu if cpu[name] != cuda[name]} == {"torch"}
    assert cpu["torch"].public == str(cuda["torch"])


# Builds of torch for CUDA require their own version of it; without CUDA only a benchmark imports it.
WITH_TORCH = {"triton"}
# A benchmark asks it how busy the GPU is, and goes without where it is not installed.
WITH_A_GPU = {"pynvml"}


# Distributions with modules of one namespace, the longest name first.
NAMESPACED = {
    "opentelemetry.exporter": "opentelemetry-exporter-otlp-proto-http",
    "opentelemetry.proto": "opentelemetry-proto",
    "opentelemetry.sdk": "opentelemetry-sdk",
    "opentelemetry": "opentelemetry-api",
}


def imported_name(module: str) -> str:
    """The top-level name of a module, or its distribution if several share that name."""
    found = (name for prefix, name in NAMESPACED.items() if f"{module}.".startswith(f"{prefix}."))
    return next(found, module.partition(".")[0])


def third_party_imports(folders: tuple[str, ...]) -> Iterator[str]:
    """Top-level names of everything imported that is neither ours nor the standard library's."""
    ours = {*sys.stdlib_module_names, *PACKAGES, "benchmarks", "tests", "training"}
    for path in [path for folder in folders for path in (ROOT / folder).rglob("*.py") if OTHERS not in path.parents]:
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Import():
                    modules = [alias.name for alias in node.names]
                case ast.ImportFrom(module=str(module), level=0):
                    modules = [module]
                case ast.Call(func=ast.Attribute(attr="import_module" | "find_spec"), args=[ast.Constant(str(module))]):
                    modules = [module]
                case _:
                    continue
            yield from {imported_name(module) for module in modules} - ours


def distributions_of(modules: Iterator[str]) -> set[str]:
    known = {"helm_python": ["helm-python-sdk"]} | packages_distributions()  # is not in the group of tests
    return {canonicalize_name(name) for module in modules for name in known.get(module, [module])}


def required(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(requirement).name) for requirement in requirements}


def test_imports_and_required_packages_agree(groups):
    everything = required(groups["dependencies"] + groups["cluster"] + groups["tracing"])
    assert distributions_of(third_party_imports(PACKAGES)) - WITH_TORCH == everything


def test_what_tests_and_training_import_is_required(groups):
    everything = set.union(*(required(requirements) for requirements in groups.values()))
    found = distributions_of(third_party_imports(("tests", "training", "benchmarks")))
    assert found - WITH_A_GPU - WITH_TORCH <= everything


def links_of(text: str) -> list[tuple[str, str]]:
    """Relative path and anchor of each link within the repository; code is not searched."""
    return LINK.findall(CODE.sub("", text))


def anchors_of(page: Path) -> set[str]:
    """Anchors that renderers of Markdown derive from the headings: lower case, hyphens for spaces, no marks."""
    headings = re.findall(r"^#+ +(.*)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S), re.MULTILINE)
    slugs = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
    return {f"{slug}-{n}" if n else slug for i, slug in enumerate(slugs) for n in [slugs[:i].count(slug)]}


def broken_links(page: Path) -> list[str]:
    found = []
    for path, anchor in links_of(page.read_text()):
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            found.append(f"{page.name}: {path}#{anchor}" if anchor else f"{page.name}: {path}")
    return found


def test_links_and_anchors_between_pages_resolve(committed):
    pages = [path for path in committed if path.suffix == ".md" and path.exists()]
    assert [link for page in pages for link in broken_links(page)] == []
    assert sum(len(links_of(page.read_text())) for page in pages) > 100


def test_broken_links_and_anchors_are_found(tmp_path):
    (tmp_path / "other.md").write_text("# First `code` one\n\n## Two words\n\n## Two words\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Top\n[a](other.md) [b](other.md#two-words) [c](other.md#two-words-1) [`d`](other.md#first-code-one)\n"
        "[e](#top) [f](gone.md) [g](other.md#gone) [h](#gone) [i](https://example.com/#x)\n"
        "`[j](gone.md)`\n```\n[k](gone.md)\n```\n"
    )
    assert broken_links(page) == ["page.md: gone.md", "page.md: other.md#gone", "page.md: #gone"]


def defined_in(path: Path) -> set[str]:
    """Names of functions, and of methods as ``Class.method``, at the top level of a module."""
    body = ast.parse(path.read_text()).body
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    methods = {
        f"{node.name}.{method.name}"
        for node in body
        if isinstance(node, ast.ClassDef)
        for method in node.body
        if isinstance(method, functions)
    }
    return methods | {node.name for node in body if isinstance(node, functions)}


def test_life_of_a_reply_names_functions_that_exist():
    page = (ROOT / "docs" / "design" / "life-of-a-reply.md").read_text()
    hops = re.findall(r"^\| (\d+) \| `([\w/]+\.py)` \| `([\w.]+)` \|", page, re.MULTILINE)
    assert [int(number) for number, _, _ in hops] == list(range(1, len(hops) + 1))
    assert 30 <= len(hops) <= 40
    assert [(file, name) for _, file, name in hops if name not in defined_in(ROOT / file)] == []


class Size(NamedTuple):
    """Number of Python lines, Python files, and names that two or more classes share."""

    num_lines: int
    num_files: int
    num_shared_names: int


# Ceilings: a change that makes a folder smaller lowers its row. Only a feature that needs more lines raises it.
MAX_SIZES = {
    "engine": Size(23_180, 130, 0),
    "sessions": Size(14_300, 120, 0),
    "realtime": Size(29_190, 185, 0),
    "tests": Size(70_690, 388, 7),
}
MAX_SHARED_NAMES = 0  # in the source tree: shared within a package or between packages


@functools.cache
def class_names(source: str) -> list[str]:
    return [node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]


def num_shared(names: list[str]) -> int:
    """Number of names that two or more classes have."""
    return sum(count > 1 for count in Counter(names).values())


def size_of(sources: list[str]) -> Size:
    names = [name for source in sources for name in class_names(source)]
    return Size(sum(len(source.splitlines()) for source in sources), len(sources), num_shared(names))


@pytest.fixture(scope="module")
def sources(committed) -> dict[str, list[str]]:
    """Python sources by top-level folder."""
    paths = [path for path in committed if path.suffix == ".py" and path.is_file()]
    by_folder = itertools.groupby(sorted(paths), lambda path: path.relative_to(ROOT).parts[0])
    return {folder: [path.read_text(encoding="utf-8") for path in found] for folder, found in by_folder}


@pytest.mark.parametrize("folder", MAX_SIZES)
def test_folder_is_not_larger_than_its_ceilings(sources, folder):
    size, ceiling = size_of(sources[folder]), MAX_SIZES[folder]
    exceeded = [name for name in Size._fields if getattr(size, name) > getattr(ceiling, name)]
    assert exceeded == [], f"{folder} has {size}, at most {ceiling}: simplify, or see MAX_SIZES"


def test_packages_share_no_more_class_names(sources):
    names = [name for package in PACKAGES for source in sources[package] for name in class_names(source)]
    assert num_shared(names) <= MAX_SHARED_NAMES


def test_size_counts_lines_files_and_shared_names():
    first = "class A:\n    class B: ...\n\n# class B\n"
    assert size_of([first, "class B: ...", "x = 'class A: ...'"]) == Size(6, 3, 1)


MAX_IMPORT_CHAIN = 14  # modules; may only fall
# An import at the top level of a module; those for annotations alone and within functions are indented.
TOP_LEVEL_IMPORT = re.compile(r"^from ([\w.]+) import (\([^)]*\)|.*)$", re.MULTILINE)
PLAIN_IMPORT = re.compile(r"^import ([\w., ]+)", re.MULTILINE)


def imported_modules(source: str, modules: Container[str]) -> set[str]:
    """Those of ``modules`` that a source imports when it is loaded."""
    found = TOP_LEVEL_IMPORT.findall(source)
    pairs = [(package, name) for package, names in found for name in re.findall(r"\w+", names)]
    named = [f"{package}.{name}" for package, name in pairs] + [package for package, _ in found]
    plain = [clause.split()[0] for names in PLAIN_IMPORT.findall(source) for clause in names.split(",")]
    return {module for module in (*named, *plain) if module in modules}


def longest_import_chain(sources: dict[str, str]) -> list[str]:
    """The longest list of modules of which each imports the next one. Raises ``CycleError``, which names a cycle."""
    imported = {module: imported_modules(source, sources) - {module} for module, source in sources.items()}
    chains: dict[str, list[str]] = {}
    for module in TopologicalSorter(imported).static_order():
        chains[module] = [module, *max((chains[other] for other in imported[module]), key=len, default=[])]
    return max(chains.values(), key=len)


def test_import_chains_are_not_longer_than_their_ceiling(committed):
    paths = [path.relative_to(ROOT) for path in committed if path.suffix == ".py" and path.is_file()]
    sources = {
        ".".join(path.with_suffix("").parts).removesuffix(".__init__"): (ROOT / path).read_text(encoding="utf-8")
        for path in paths
        if path.parts[0] in PACKAGES
    }
    chain = longest_import_chain(sources)
    assert len(chain) <= MAX_IMPORT_CHAIN, " > ".join(chain)


def test_import_chain_follows_what_is_imported_when_a_module_is_loaded():
    sources = {
        "a": "from b import (\n    c,\n    Name,\n)\nif TYPE_CHECKING:\n    from e import Type\n",
        "b": "",
        "b.c": "import sys\nfrom d import Other as Alias\n",
        "d": "def lazy():\n    from e import f\n",
        "e": "from a import Name\n",
    }
    assert longest_import_chain({name: sources[name] for name in "a b b.c d".split()}) == ["a", "b.c", "d"]
    assert longest_import_chain(sources) == ["e", "a", "b.c", "d"]
    assert longest_import_chain({"a": "import sys, b.c as d\n", "b.c": "import e\n", "e": ""}) == ["a", "b.c", "e"]


def test_a_cycle_of_imports_is_named():
    sources = {"a": "import b\n", "b": "from c import Name\n", "c": "from a import Name\n"}
    with pytest.raises(CycleError) as caught:
        longest_import_chain(sources)
    assert set(caught.value.args[1]) == {"a", "b", "c"}
