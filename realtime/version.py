"""Which voicewire this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("voicewire")
except PackageNotFoundError:  # run from the source tree
    VERSION = "0+source"
