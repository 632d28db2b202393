"""Models of the hub by OWNER/NAME."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from engine.errors import CheckpointError
from engine.launch import create_engine, inspect_checkpoint
from engine.weights.hub import resolve_folder
from tests.fakes.checkpoints import write_checkpoint


def test_a_folder_is_itself_whatever_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "name").mkdir(parents=True)
    for folder in (tmp_path, Path("owner/name"), Path("a/b/c"), Path("alone")):
        assert resolve_folder(folder) == folder


@pytest.mark.parametrize(
    ("model", "repo", "revision"),
    [("owner/a-model.1", "owner/a-model.1", None), ("owner/model@v1.0", "owner/model", "v1.0")],
)
def test_hub_name_fetches_its_revision_and_only_model_files(
    model: str, repo: str, revision: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def snapshot_download(repo_id: str, **options: Any) -> str:
        asked.update(options, repo_id=repo_id)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert resolve_folder(Path(model)) == tmp_path
    assert (asked["repo_id"], asked["revision"]) == (repo, revision)
    loose = [pattern for pattern in asked["allow_patterns"] if "*" in pattern]
    assert not any(pattern.endswith((".bin", ".pt", ".py", ".onnx", "*")) for pattern in loose)
    assert asked["ignore_patterns"] == ["CosyVoice-BlankEN/*.safetensors"]


async def test_a_fetched_model_speaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_checkpoint(tmp_path / "snapshot")
    monkeypatch.setattr("engine.weights.hub._fetch", lambda repo, revision: folder)
    assert inspect_checkpoint(Path("owner/model")).task == "custom_voice"
    engine = create_engine(Path("owner/model"), device="cpu", process=False, kv_memory_mb=8, lazy_graph_capture=True)
    await engine.start()
    await engine.aclose()


def test_unreachable_hub_error_names_both_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointError, match=r"no-such-owner/no-such-model is no folder here, and the hub did not"):
        resolve_folder(Path("no-such-owner/no-such-model"))


REPO = "owner/small-voice"
COMMIT = hashlib.sha1(b"a commit").hexdigest()
REVISIONS = [f"/api/models/{REPO}/revision/{name}" for name in ("main", COMMIT)]
TREE = f"/api/models/{REPO}/tree/{COMMIT}"
FILES = f"/{REPO}/resolve/{COMMIT}/"


class Hub(ThreadingHTTPServer):
    """Serves ``folder`` as the one repository it has, at revision main."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Pages)
        self.folder = folder
        self.names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        self.fetched: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Pages(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        name = path.removeprefix(FILES)
        if path in REVISIONS:
            listing = {"id": REPO, "sha": COMMIT, "siblings": [{"rfilename": name} for name in self.server.names]}
            self.answer(json.dumps(listing).encode(), "application/json")
        elif path == TREE:
            self.answer(json.dumps([self.entry(name) for name in self.server.names]).encode(), "application/json")
        elif path.startswith(FILES) and name in self.server.names:
            self.answer((self.server.folder / name).read_bytes(), "application/octet-stream")
            if self.command == "GET":
                self.server.fetched.append(name)
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def entry(self, name: str) -> dict[str, object]:
        content = (self.server.folder / name).read_bytes()
        return {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}

    def answer(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "ETag": f'"{hashlib.sha1(body).hexdigest()}"',
            "X-Repo-Commit": COMMIT,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    folder = write_checkpoint(tmp_path / "repository")
    (folder / "run_me.py").write_text("raise SystemExit('nothing fetched is ever run')")
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    hub = Hub(folder)
    thread = threading.Thread(target=hub.serve_forever)
    thread.start()
    yield hub
    hub.shutdown()
    hub.server_close()
    thread.join()


RESOLVE = """
import sys, pathlib
from engine.weights.hub import resolve_folder
print(resolve_folder(pathlib.Path(sys.argv[1])))
"""


def resolved(hub: Hub, cache: Path, name: str) -> subprocess.CompletedProcess[str]:
    """The hub's client reads its address when it is imported: a process of its own."""
    environment = {**os.environ, "HF_ENDPOINT": hub.address, "HF_HOME": str(cache), "HF_HUB_DISABLE_TELEMETRY": "1"}
    environment.pop("HF_HUB_OFFLINE", None)
    command = [sys.executable, "-c", RESOLVE, name]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def test_a_model_of_the_hub_is_downloaded_once_and_read(hub: Hub, tmp_path: Path) -> None:
    folder = Path(resolved(hub, tmp_path / "cache", REPO).stdout.strip())
    assert inspect_checkpoint(folder).task == "custom_voice"
    assert set(hub.names) - set(hub.fetched) == {"run_me.py", "pytorch_model.bin"}

    hub.fetched.clear()
    assert Path(resolved(hub, tmp_path / "cache", REPO).stdout.strip()) == folder
    assert hub.fetched == []


def test_model_without_revision_prints_its_commit(hub: Hub, tmp_path: Path) -> None:
    named = f"{REPO} is not pinned to a revision; the hub gave commit {COMMIT}, pin it with {REPO}@{COMMIT}"
    for _ in range(2):
        assert named in resolved(hub, tmp_path / "cache", REPO).stderr
    assert "not pinned" not in resolved(hub, tmp_path / "cache", f"{REPO}@{COMMIT}").stderr


def test_model_missing_on_the_hub_is_named(hub: Hub, tmp_path: Path) -> None:
    done = resolved(hub, tmp_path / "cache", "owner/no-such-voice")
    assert done.returncode != 0
    assert "owner/no-such-voice is no folder here, and the hub did not give it" in done.stderr
