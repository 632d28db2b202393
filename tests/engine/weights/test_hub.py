"""A model by its name on the hub: fetched where it can be, and else told what it was taken for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from engine.errors import CheckpointError
from engine.launch import create_engine, inspect_checkpoint
from engine.weights import hub
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
def test_a_hub_name_is_fetched_with_its_revision_and_nothing_but_model_files(
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
    monkeypatch.setattr(hub, "_fetch", lambda repo, revision: folder)
    assert inspect_checkpoint(Path("owner/model")).task == "custom_voice"
    engine = create_engine(Path("owner/model"), device="cpu", process=False, kv_memory_mb=8, lazy_graph_capture=True)
    await engine.start()
    await engine.aclose()


def test_out_of_reach_of_the_hub_both_readings_of_the_name_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointError, match=r"no-such-owner/no-such-model is no folder here, and the hub did not"):
        resolve_folder(Path("no-such-owner/no-such-model"))
