from __future__ import annotations

import argparse
from types import SimpleNamespace

import pytest

from engine.api import CheckpointError
from realtime import cli


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
