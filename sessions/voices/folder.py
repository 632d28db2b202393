"""Default folder of stored voices."""

from __future__ import annotations

import os
from pathlib import Path


def data_folder() -> Path:
    """Return this program's folder in the user's data folder, whether it exists or not."""
    data_home = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")  # noqa: PTH111 never raises
    return Path(data_home) / "voicewire"


def voices_folder(setting: str | None) -> Path:
    return data_folder() / "voices" if setting is None else Path(setting)
