"""Load libopus: the one bundled with opuslib-next-bundled, else the system's."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from functools import cache
from types import ModuleType

# Set to 1, this variable of the environment has the system's libopus used in any case.
USE_SYSTEM_LIBRARY = "OPUSLIB_NEXT_USE_SYSTEM_LIB"
HOW_TO_INSTALL = (
    "install the Python package opuslib-next-bundled, which brings libopus along, or a system libopus "
    "(apt install libopus0, dnf install opus, brew install opus)"
)


class OpusUnavailable(RuntimeError):
    """Raised when no libopus can be loaded; the message says what to install."""


@dataclass(frozen=True, slots=True)
class OpusLibrary:
    path: str
    # Reported by the library; some builds have no number.
    version: str


@cache
def load_opuslib() -> ModuleType:
    """Import ``opuslib`` with a libopus that it finds; raises ``OpusUnavailable``."""
    try:
        return importlib.import_module("opuslib_next")
    except (ImportError, OSError, RuntimeError) as error:
        bundled_error = error
    os.environ[USE_SYSTEM_LIBRARY] = "1"
    try:
        return importlib.import_module("opuslib_next")
    except (ImportError, OSError, RuntimeError) as error:
        raise OpusUnavailable(f"no libopus: {bundled_error}; {error}; {HOW_TO_INSTALL}") from error


def describe() -> OpusLibrary:
    """Return version and path of the loaded libopus; raises ``OpusUnavailable``."""
    api = load_opuslib().api
    return OpusLibrary(path=api.libopus._name, version=api.info.get_version_string().decode())
