from __future__ import annotations

import shutil

import numpy as np
import pytest
from safetensors.numpy import save_file

from realtime.cli import main
from realtime.commands import doctor
from realtime.commands.doctor import Finding, checkpoint, line, package, program

CHECKPOINT_FILES = (
    "config.json",
    "model.safetensors",
    "speech_tokenizer/config.json",
    "speech_tokenizer/model.safetensors",
)


@pytest.fixture
def folder(tmp_path):
    """A folder that could be a checkpoint, as far as its files can be read."""
    for name in CHECKPOINT_FILES:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        if path.suffix == ".json":
            path.write_text("{}")
        else:
            save_file({"weight": np.zeros(100, np.float32)}, path)
    return tmp_path


def test_a_healthy_machine_ends_with_0_and_every_part_in_its_line(folder, capsys):
    assert main(["doctor", "--model", str(folder)]) == 0
    shown = capsys.readouterr().out
    for subject in ("python", "torch", "libopus", "checkpoint", "player", "flite", "mosquitto", "chromium", "av"):
        assert f" {subject}: " in shown


def test_a_missing_required_part_is_told_with_its_remedy(tmp_path, capsys):
    assert main(["doctor", "--model", str(tmp_path / "nowhere")]) == 1
    assert "MISSING checkpoint: config.json" in capsys.readouterr().out


@pytest.mark.parametrize("name", CHECKPOINT_FILES)
def test_a_checkpoint_file_that_is_missing_or_cut_off_is_named(folder, name):
    whole = (folder / name).read_bytes()
    assert checkpoint(folder).present
    (folder / name).write_bytes(whole[:-1])
    assert name in checkpoint(folder).detail
    (folder / name).unlink()
    finding = checkpoint(folder)
    assert (finding.present, finding.required) == (False, True)
    assert name in finding.detail


def test_optional_parts_never_fail(monkeypatch):
    missing = [program("no-such-program", "x"), package("no-such-package", "x")]
    assert not any(finding.present or finding.required for finding in missing)
    monkeypatch.setattr(doctor, "examine", lambda model: missing)
    assert main(["doctor"]) == 0


def test_lines_tell_present_missing_and_absent_apart():
    assert line(Finding("a", True, "1.0", "do this")) == "ok      a: 1.0"
    assert line(Finding("a", False, "gone", "do this")) == "MISSING a: gone -> do this"
    assert line(Finding("a", False, "gone", "do this", required=False)) == "absent  a: gone -> do this"


def test_the_voice_that_comes_with_it_is_whole_shards_and_all():
    finding = doctor.checkpoint(doctor.embedded_voice())
    assert finding.present, finding.detail


def test_a_missing_shard_is_named(tmp_path):
    shutil.copytree(doctor.embedded_voice(), tmp_path / "voice")
    (tmp_path / "voice" / "model-00002-of-00002.safetensors").unlink()
    finding = doctor.checkpoint(tmp_path / "voice")
    assert not finding.present
    assert "model-00002-of-00002.safetensors" in finding.detail
