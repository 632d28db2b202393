"""Where voices are stored when nobody says where."""

from __future__ import annotations

import os
from pathlib import Path


def voices_folder(setting: str | None) -> Path:
    if setting is not None:
        return Path(setting)
    data_home = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")  # noqa: PTH111 never raises
    return Path(data_home) / "voicewire" / "voices"
