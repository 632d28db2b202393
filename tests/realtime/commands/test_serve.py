from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest

from realtime.cli import main
from realtime.commands.serve import add_arguments, collect_settings
from realtime.config import ConfigError
from tests.fakes.checkpoints import write_checkpoint
from tests.realtime.server_process import wire_address


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(arguments)


def test_flags_are_settings() -> None:
    arguments = parsed(
        "--port", "0", "--host", "::1", "--set", "limits.max_errors_per_connection=5", "--set", "engine.model=a=b"
    )
    assert collect_settings(arguments) == {
        "listen.port": "0", "listen.host": "::1", "limits.max_errors_per_connection": "5", "engine.model": "a=b",
    }  # fmt: skip


def test_a_setting_without_a_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected NAME=VALUE"):
        collect_settings(parsed("--set", "limits.max_errors_per_connection"))


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (["--port", "70000"], 2, "listen.port = '70000' (command line): expected a whole number from 0 to 65535"),
        (["--set", "listen.prot=1"], 2, "listen.prot (command line) is no setting"),
        (["--config", "nowhere.toml"], 2, "nowhere.toml"),
        (["--keys-file", "nowhere.toml"], 2, "auth.keys_file nowhere.toml"),
        (["--model", "/nowhere", "--port", "0"], 1, "/nowhere"),
        (["--set", "engine.options=5"], 2, "engine.options = 5 (command line): expected a table"),
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
    assert "limits.max_errors_per_connection = 100: a whole number from 1 to 1000000" in capsys.readouterr().out


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


@pytest.mark.parametrize("gateways", ["1", "2"])
def test_serve_signal_during_load_stops_and_leaves_nothing(tmp_path: Path, gateways: str) -> None:
    model, temporary = write_checkpoint(tmp_path / "model"), tmp_path / "temporary"
    temporary.mkdir()
    command = [sys.executable, "-m", "realtime.cli", "serve", "--port", "0", "--model", str(model)]
    with subprocess.Popen(
        [*command, "--gateways", gateways],
        env=os.environ | {"TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as server:
        while not (loading := psutil.Process(server.pid).children()):
            time.sleep(0.01)
        server.send_signal(signal.SIGTERM)
        told, errors = server.communicate(timeout=20)
    assert (server.returncode, told) == (0, b"")
    assert b"Traceback" not in errors
    assert not any(child.is_running() for child in loading)
    assert list(temporary.iterdir()) == []
