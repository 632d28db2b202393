"""Parts of the commands that load a configuration and then run: flags for settings, and progress while they start."""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Mapping

from realtime.config import ConfigError, settings

# Exit status for settings that cannot be used.
WRONG_SETTINGS = 2


def add_setting_arguments(parser: argparse.ArgumentParser, flags: Mapping[str, str]) -> None:
    """Add the flags, each the name of a setting, and ``--set`` for all others."""
    known = settings()
    for flag, name in flags.items():
        about = known[name].type.__metadata__[0].description
        parser.add_argument("--" + flag.replace("_", "-"), metavar="VALUE", help=f"{about} ({name})")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="any other setting, as often as needed"
    )


def collect_settings(args: argparse.Namespace, flags: Mapping[str, str]) -> dict[str, object]:
    """Settings by name, out of ``flags`` and ``--set``. Raises ``ConfigError``."""
    values: dict[str, object] = {name: getattr(args, flag) for flag, name in flags.items() if getattr(args, flag)}
    for item in args.set:
        name, equals, value = item.partition("=")
        if not equals:
            raise ConfigError(f"--set {item}: expected NAME=VALUE")
        values[name] = value
    return values


class StartupProgress:
    """Seconds ticking on a terminal, in a thread of their own, so that they tick while the loop is busy."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="voicewire progress", daemon=True)

    def __enter__(self) -> StartupProgress:
        if sys.stderr.isatty():
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _tick(self) -> None:
        begun_s = time.monotonic()
        while not self._over.wait(0.1):
            print(f"\r{self._what} {time.monotonic() - begun_s:.1f} s ", end="", file=sys.stderr, flush=True)
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
