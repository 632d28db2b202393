"""``voicewire engine``: one engine at an address, for servers with ``engine.addresses``."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from realtime.commands.startup import WRONG_SETTINGS, StartupProgress, add_setting_arguments, collect_settings
from realtime.config import ConfigError, load_config
from realtime.engine_factory import serve_engine
from realtime.logs import configure_logs

# Flags for the commonest settings.
FLAGS = {
    "model": "engine.model",
    "tls_certificate": "engine.tls_certificate",
    "tls_key": "engine.tls_key",
    "tls_ca": "engine.tls_ca",
    "log_level": "log.level",
    "log_format": "log.format",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--listen", required=True, metavar="ADDRESS", help="unix:/path or tcp://HOST:PORT")
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file, as of `voicewire serve`")
    add_setting_arguments(parser, FLAGS)


def run(args: argparse.Namespace) -> int:
    try:
        config = load_config(args.config, os.environ, collect_settings(args, FLAGS))
    except ConfigError as error:
        print(f"voicewire engine: {error}", file=sys.stderr)
        return WRONG_SETTINGS
    configure_logs(config.log)
    with StartupProgress("loading the voice") as progress:
        serve_engine(config, args.listen, lambda address: print_ready(address, progress))
    return 0


def print_ready(address: str, progress: StartupProgress) -> None:
    """Print the address on standard output; programs read this line."""
    progress.stop()
    print(f"engine {address}", flush=True)
