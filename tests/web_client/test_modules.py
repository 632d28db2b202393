"""The page's files: their types, their units, their size, and what they must not hold."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from realtime.errors import CloseCode
from realtime.protocol import events as ev
from realtime.protocol.native import PATH, SUBPROTOCOL

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "web_client"
VENDOR = PAGE / "vendor"
MAX_PAGE_BYTES = 258_000
OURS = [path for path in PAGE.rglob("*") if path.is_file() and VENDOR not in path.parents]
SCRIPTS = [path for path in OURS if path.suffix == ".js"]


def command(*parts: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(parts, cwd=HERE, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("script", [path.name for path in sorted((HERE / "unit").glob("*.test.js"))])
def test_units(script):
    node = shutil.which("node") or pytest.skip("node is not installed (Debian: apt install nodejs)")
    result = command(node, "--test", f"unit/{script}")
    assert result.returncode == 0, result.stdout


@pytest.fixture(scope="module")
def tsc() -> Path:
    """The compiler that package.json pins, installed beside it when it is not there yet."""
    npm = shutil.which("npm") or pytest.skip("npm is not installed (Debian: apt install npm)")
    wanted = json.loads((HERE / "package.json").read_text())["devDependencies"]["typescript"]
    found = HERE / "node_modules" / "typescript" / "package.json"
    if not found.exists() or json.loads(found.read_text())["version"] != wanted:
        result = command(npm, "install", "--no-package-lock", "--no-audit", "--no-fund")
        if result.returncode:
            pytest.skip(f"npm could not install typescript {wanted}: {result.stderr[-300:]}")
    return HERE / "node_modules" / ".bin" / "tsc"


@pytest.mark.timeout(300)
def test_types(tsc):
    result = command(tsc, "-p", ".")
    assert (result.returncode, result.stdout) == (0, "")


@pytest.mark.timeout(300)
def test_a_wrong_type_is_found(tsc, tmp_path):
    (tmp_path / "wrong.js").write_text("/** @type {number} */ const wrong = 'text';\nexport { wrong };\n")
    (tmp_path / "tsconfig.json").write_text(json.dumps({"extends": str(HERE / "tsconfig.json"), "include": ["*.js"]}))
    assert "TS2322" in command(tsc, "-p", tmp_path).stdout


def test_the_page_is_small():
    sizes = {path.relative_to(PAGE): path.stat().st_size for path in OURS}
    assert sum(sizes.values()) <= MAX_PAGE_BYTES, sizes


@pytest.mark.parametrize("path", OURS, ids=lambda path: str(path.relative_to(PAGE)))
def test_nothing_is_fetched_from_elsewhere_and_text_stays_text(path):
    source = path.read_text().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"""(?:src|href|import|from|url)\s*[=(:]?\s*["'(]?\s*https?:""", source)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", source)
    if path.suffix == ".html":
        assert not re.search(r"\son\w+=|<script(?![^>]*\ssrc=)|\sstyle=", source), "the content policy forbids these"


def test_the_vendored_decoder_is_the_one_that_was_published():
    folder = VENDOR / "opus-decoder"
    digest = hashlib.sha256((folder / "opus-decoder.min.js").read_bytes()).hexdigest()
    assert digest in (folder / "README.md").read_text()
    licence = (folder / "LICENSE").read_text()
    assert "Ethan Halsall" in licence
    assert "Xiph.Org" in licence


def test_close_codes_and_addresses_are_those_of_the_server():
    source = (PAGE / "protocol" / "close.js").read_text()
    assert {int(code) for code in re.findall(r": (\d{4}),", source)} == set(CloseCode)
    native = (PAGE / "protocol" / "native.js").read_text()
    assert f'"{PATH}"' in native
    assert f'"{SUBPROTOCOL}"' in native


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("format", ev.NativeAudioFormat),
        ("sampling", ev.NativeSamplingOptions),
        ("settingFields", ev.NativeSpeechSettings),
    ],
)
def test_settings_are_those_of_the_server(name, kind):
    """The vectors hold every event, but not every setting."""
    source = (PAGE / "protocol" / "events.js").read_text()
    table = re.search(rf"const {name} = (?:struct\(\s*)?{{(.*?)}}", source, re.DOTALL)[1]
    assert re.findall(r"^\s+(\w+): ", table, re.MULTILINE) == list(kind.__struct_fields__)
