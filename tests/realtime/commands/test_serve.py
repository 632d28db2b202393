"""The commands serve, doctor and what all commands share."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from safetensors.numpy import load_file, save_file

from engine.api import CheckpointError
from realtime import cli
from realtime.cli import main
from realtime.commands import doctor
from realtime.commands.doctor import CheckResult, checkpoint, line, package, program
from realtime.commands.serve import FLAGS, add_arguments, with_gateways
from realtime.commands.startup import collect_settings
from realtime.config import ConfigError, load_config
from tests.fakes.checkpoints import write_checkpoint
from tests.realtime.server_process import wire_address


@pytest.fixture
def command(monkeypatch):
    """A command called ``test``, whose ``run`` can be replaced."""
    command = SimpleNamespace(add_arguments=lambda parser: parser.add_argument("word"), run=lambda args: 0)
    monkeypatch.setitem(cli.COMMANDS, "test", cli.Entry("unused", "a command for tests"))
    monkeypatch.setattr(cli, "load", lambda name: command)
    return command


def raising(error: BaseException):
    def run(args: argparse.Namespace) -> int:
        raise error

    return run


def test_help_lists_every_command_with_its_summary(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["--help"])
    assert end.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert all(f"{name} {entry.summary}" in shown for name, entry in cli.COMMANDS.items())


@pytest.mark.parametrize("argv", [[], ["sing"], ["doctor", "--nonsense"]])
def test_what_is_not_understood_is_a_usage_error(argv, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(argv)
    assert end.value.code == 2
    assert "usage: voicewire" in capsys.readouterr().err


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_of_the_table_can_be_loaded(name, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main([name, "--help"])
    assert end.value.code == 0
    assert cli.COMMANDS[name].summary in " ".join(capsys.readouterr().out.split())


def test_the_status_of_a_command_is_the_status_of_the_program(command):
    command.run = lambda args: {"seven": 7}[args.word]
    assert cli.main(["test", "seven"]) == 7


@pytest.mark.parametrize("error", [CheckpointError("config.json: no such key"), FileNotFoundError("no such folder")])
def test_expected_error_is_printed_in_one_line(command, error, capsys):
    command.run = raising(error)
    assert cli.main(["test", "x"]) == 1
    assert capsys.readouterr().err == f"voicewire test: {error}\n"


def test_an_unexpected_error_keeps_its_trace(command):
    command.run = raising(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        cli.main(["test", "x"])


def test_ctrl_c_ends_with_the_shells_status_for_it(command):
    command.run = raising(KeyboardInterrupt())
    assert cli.main(["test", "x"]) == 130


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(arguments)


def test_flags_are_settings() -> None:
    arguments = parsed(
        "--port", "0", "--host", "::1", "--set", "limits.max_response_chars=5", "--set", "engine.model=a=b"
    )
    assert collect_settings(arguments, FLAGS) == {
        "listen.port": "0", "listen.host": "::1", "limits.max_response_chars": "5", "engine.model": "a=b",
    }  # fmt: skip


def test_agent_has_flags_of_its_own() -> None:
    flags = {"llm_url": "--llm", "llm_model": "--llm-model", "stt_url": "--stt", "stt_model": "--stt-model"}
    flags["file"] = "--agent-file"
    given = parsed(*(text for name, flag in flags.items() for text in (flag, name)))
    assert collect_settings(given, FLAGS) == {f"agent.{name}": name for name in flags}


def test_a_setting_without_a_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected NAME=VALUE"):
        collect_settings(parsed("--set", "limits.max_response_chars"), FLAGS)


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (["--port", "70000"], 2, "listen.port = '70000' (command line): expected a whole number from 0 to 65535"),
        (["--set", "listen.prot=1"], 2, "listen.prot (command line) is no setting"),
        (["--config", "nowhere.toml"], 2, "nowhere.toml"),
        (["--keys-file", "nowhere.toml"], 2, "auth.keys_file nowhere.toml"),
        (["--model", "/nowhere", "--port", "0"], 1, "/nowhere"),
        (["--set", "engine.options=5"], 2, "engine.options = 5 (command line): expected a table"),
        (["--gateways", "2", "--set", "calls.agent=builtin"], 2, "calls.agent = builtin needs agent.llm_url"),
        (["--gateways", "2", "--tls-certificate", "a.pem", "--tls-key", "b.pem"], 2, "listen.tls_certificate = a.pem"),
    ],
)
def test_unservable_configuration_is_one_line_error(
    capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, complaint: str
) -> None:
    assert main(["serve", *arguments]) == status
    told = capsys.readouterr()
    assert complaint in told.err
    assert told.out == ""


def test_settings_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--list-settings"]) == 0
    assert "limits.max_response_chars = 50000: a whole number from 1 to 10000000" in capsys.readouterr().out


def test_server_prints_address_and_stops_in_order(tmp_path: Path) -> None:
    config = tmp_path / "voicewire.toml"
    model = write_checkpoint(tmp_path / "model")
    config.write_text(f'[listen]\nport = 0\n[engine]\nmodel = "{model}"\noptions.lazy_graph_capture = true\n')
    command = [sys.executable, "-m", "realtime.cli", "serve", "--config", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as server:
        assert server.stdout is not None
        address = wire_address(server.stdout)
        assert address.endswith("/v1/speech")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        ready = address.replace("ws:", "http:").replace("/v1/speech", "/readyz")
        with opener.open(ready, timeout=5) as answer:
            assert answer.status == 200
        server.send_signal(signal.SIGINT)
        _, errors = server.communicate(timeout=10)
    assert server.returncode == 0
    assert b"Traceback" not in errors


@pytest.mark.parametrize(
    ("flags", "num_cores", "num_gateways"),
    [
        ({}, 16, 13),
        ({}, 64, 16),
        ({}, 2, 1),
        ({"listen.gateways": "4"}, 2, 4),
        ({"engine.options.device": "cpu"}, 16, 1),
        ({"engine.addresses": "127.0.0.1:9000"}, 16, 1),
        ({"engine.options.process": "false"}, 16, 1),
        ({"listen.port": "0"}, 16, 1),
        ({"calls.audiosocket": "127.0.0.1:0"}, 16, 1),
        ({"xiaozhi.mqtt": "127.0.0.1:1883"}, 16, 1),
    ],
)
def test_gateways_follow_the_cores_beside_a_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flags: dict[str, str], num_cores: int, num_gateways: int
) -> None:
    (tmp_path / "nvidia3").touch()
    monkeypatch.setattr("engine.launch.DEVICES", tmp_path)
    monkeypatch.setattr("engine.process.CPU_QUOTA", tmp_path / "none")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(num_cores)))
    config = with_gateways(load_config(flags=flags))
    assert config.listen.gateways == num_gateways
    assert config.num_encoder_threads == (0 if num_gateways > 1 else 1)


def test_machine_without_a_gpu_has_one_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("engine.launch.DEVICES", tmp_path)
    assert with_gateways(load_config()).listen.gateways == 1


@pytest.mark.parametrize("gateways", ["1", "2"])
def test_serve_signal_during_load_stops_and_leaves_nothing(tmp_path: Path, gateways: str) -> None:
    model = write_checkpoint(tmp_path / "model")
    command = [sys.executable, "-m", "realtime.cli", "serve", "--port", "0", "--model", str(model)]
    # ``tmp_path`` is too long for the engine's socket in it.
    with (
        tempfile.TemporaryDirectory() as temporary,
        subprocess.Popen(
            [*command, "--gateways", gateways],
            env=os.environ | {"TMPDIR": temporary},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as server,
    ):
        while not (loading := psutil.Process(server.pid).children()):
            assert server.poll() is None, server.communicate()
            time.sleep(0.01)
        server.send_signal(signal.SIGTERM)
        told, errors = server.communicate(timeout=20)
        assert (server.returncode, told) == (0, b"")
        assert b"Traceback" not in errors
        assert not any(child.is_running() for child in loading)
        assert list(Path(temporary).iterdir()) == []


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
