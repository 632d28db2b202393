from __future__ import annotations

import json
import shutil

import pytest
from safetensors.numpy import load_file, save_file

from realtime.cli import main
from realtime.commands import doctor
from realtime.commands.doctor import CheckResult, checkpoint, line, package, program
from tests.fakes.checkpoints import write_checkpoint

CHECKPOINT_FILES = (
    "config.json",
    "model.safetensors",
    "speech_tokenizer/config.json",
    "speech_tokenizer/model.safetensors",
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"), task="base")


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / "checkpoint")


def test_doctor_on_healthy_machine_exits_0_and_lists_all_parts(folder, capsys):
    assert main(["doctor", "--model", str(folder)]) == 0
    shown = capsys.readouterr().out
    for subject in ("python", "torch", "libopus", "checkpoint", "player", "flite", "mosquitto", "chromium", "av"):
        assert f" {subject}: " in shown


def test_doctor_names_remedy_for_missing_required_part(tmp_path, capsys):
    assert main(["doctor", "--model", str(tmp_path / "nowhere")]) == 1
    shown = capsys.readouterr().out
    assert "MISSING checkpoint: " in shown
    assert "nowhere has no config.json" in shown


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
    monkeypatch.setattr(doctor, "run_checks", lambda model: missing)
    assert main(["doctor"]) == 0


def test_doctor_distinguishes_present_missing_and_absent():
    assert line(CheckResult("a", True, "1.0", "do this")) == "ok      a: 1.0"
    assert line(CheckResult("a", False, "gone", "do this")) == "MISSING a: gone -> do this"
    assert line(CheckResult("a", False, "gone", "do this", required=False)) == "absent  a: gone -> do this"


def test_the_voice_that_comes_with_it_is_whole_shards_and_all():
    finding = doctor.checkpoint(doctor.embedded_voice())
    assert finding.present, finding.detail


def test_a_missing_shard_is_named(tmp_path):
    shutil.copytree(doctor.embedded_voice(), tmp_path / "voice")
    (tmp_path / "voice" / "model-00002-of-00002.safetensors").unlink()
    finding = doctor.checkpoint(tmp_path / "voice")
    assert not finding.present
    assert "model-00002-of-00002.safetensors" in finding.detail


def test_doctor_lists_abilities_and_size_of_checkpoint_parts(folder):
    detail = checkpoint(folder).detail
    for part in ("qwen3-tts 0b6 base", "talker", "codec decoder", "speaker encoder", "codec encoder", " MB"):
        assert part in detail
    for word in ("no voices of its own", "languages auto, english, chinese, german", "takes no instructions"):
        assert word in detail


def test_doctor_names_missing_or_misshapen_tensor(folder):
    file = folder / "model.safetensors"
    tensors = load_file(file)
    name = "speaker_encoder.fc.bias"
    save_file(tensors | {name: tensors[name][:-1]}, file)
    assert f"tensor {name} has shape [47]; the config asks for [48]" in checkpoint(folder).detail
    del tensors[name]
    save_file(tensors, file)
    assert f"1 tensors are missing, first {name}" in checkpoint(folder).detail
    save_file(
        tensors
        | {
            name: load_file(file)["speaker_encoder.fc.weight"][:, 0, 0],
            "talker.more": tensors["talker.model.norm.weight"],
        },
        file,
    )
    assert "unknown tensor talker.more" in checkpoint(folder).detail
    assert not checkpoint(folder).present


def test_doctor_names_key_and_value_of_unknown_configuration(folder):
    config = json.loads((folder / "config.json").read_text())
    for changes, told in (
        ({"tts_model_type": "sing"}, "'tts_model_type' is 'sing'"),
        ({"model_type": "qwen2"}, "model_type is 'qwen2'"),
        ({"talker_config": config["talker_config"] | {"hidden_act": "gelu"}}, "'hidden_act' is 'gelu'"),
        ({"speaker_encoder_config": {"enc_dim": 7, "sample_rate": 24000}}, "the speaker vector differs"),
    ):
        (folder / "config.json").write_text(json.dumps(config | changes))
        assert told in checkpoint(folder).detail
        assert main(["doctor", "--model", str(folder)]) == 1
