"""The ``voicewire`` command: a table of commands, each imported when it is called and not before."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple, Protocol, cast

INTERRUPTED = 130


class Command(Protocol):
    """Interface of a module of the table."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int:
        """Do it; returns the exit status."""
        ...


class Entry(NamedTuple):
    module: str
    summary: str


COMMANDS = {
    "say": Entry("realtime.commands.say", "speak a text, given or still arriving on standard input"),
    "serve": Entry("realtime.commands.serve", "listen for clients and speak to them"),
    "engine": Entry("realtime.commands.engine", "run one engine at an address, for servers on this or other machines"),
    "cluster": Entry("realtime.commands.cluster", "run engines and gateways on several machines, with Ray"),
    "bench": Entry("realtime.commands.bench", "load a server with clients, and report what they measured"),
    "voices": Entry("realtime.commands.voices", "list the voices of a model; store, blend and delete voices"),
    "detect": Entry("realtime.commands.detect", "report whether a recording has the watermark of this deployment"),
    "doctor": Entry("realtime.commands.doctor", "list what is missing on this machine, and how to get it"),
}


def main(argv: Sequence[str] | None = None) -> int:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that spin starve the ones beside them
    argv = sys.argv[1:] if argv is None else argv
    name = argv[0] if argv else ""
    command = load(name) if name in COMMANDS else None
    args = parser_for(name, command).parse_args(argv)
    if command is None:
        return 2
    try:
        return command.run(args)
    except KeyboardInterrupt:
        return INTERRUPTED
    except expected_errors() as error:
        print(f"voicewire {name}: {error}", file=sys.stderr)
        return 1


def load(name: str) -> Command:
    return cast(Command, importlib.import_module(COMMANDS[name].module))


def parser_for(name: str, command: Command | None) -> argparse.ArgumentParser:
    """The parser of all commands, of which only the one called knows its arguments."""
    parser = argparse.ArgumentParser(prog="voicewire", description="Text in, a natural voice out, in real time.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for entry_name, entry in COMMANDS.items():
        subparser = commands.add_parser(entry_name, help=entry.summary, description=entry.summary)
        if command is not None and entry_name == name:
            command.add_arguments(subparser)
    return parser


def expected_errors() -> tuple[type[Exception], ...]:
    """Errors whose message is all that a user needs."""
    from engine.api import EngineError
    from sessions.errors import SessionError

    return (EngineError, OSError, SessionError)


if __name__ == "__main__":
    sys.exit(main())
