"""What an engine is made with, where nothing else is said, depends on where it will run."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import launch


@pytest.mark.parametrize(
    ("device", "has_gpu", "visible", "is_cuda"),
    [
        ("cpu", True, None, False),
        ("cuda:1", False, None, True),
        ("auto", True, None, True),
        ("auto", True, "0,1", True),
        ("auto", True, "", False),
        ("auto", True, "-1", False),
        ("auto", True, "-1,0", False),
        ("auto", True, "NoDevFiles", False),
        ("auto", True, " 1,-1", True),
        ("auto", True, "GPU-5f3a,0", True),
        ("auto", True, "MIG-41b3", True),
        ("auto", False, None, False),
    ],
)
def test_by_where_it_will_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, device: str, has_gpu: bool, visible: str | None, is_cuda: bool
) -> None:
    monkeypatch.setattr(launch, "FIRST_GPU", tmp_path if has_gpu else tmp_path / "none")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    config = launch._engine_config({}, device)
    assert (config.lead_step_interval_s == 0.0) is is_cuda
    assert config.process_nice == (0 if is_cuda else launch.CPU_NICENESS)
