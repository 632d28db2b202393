"""Instructions on how to speak, which not every model follows."""

from __future__ import annotations

from engine.api import EngineInfo

LEFT_OUT = "this model takes no instructions, they are left out"


def supported_instructions(given: str, info: EngineInfo) -> tuple[str, str]:
    """Return what the model follows of the instructions, and a warning if that is nothing of what was given."""
    if given and not info.takes_instruct:
        return "", LEFT_OUT
    return given, ""
