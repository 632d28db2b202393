"""Every vendor's wire: where it is found, and which dialect is spoken there."""

from __future__ import annotations

from typing import Literal, NamedTuple

from realtime.protocol.dialects.base import Dialect


class Wire(NamedTuple):
    path: str
    dialect: type[Dialect]
    carrier: Literal["socket", "http"] = "socket"
    """``http``: POST, one body in, one streamed body out."""
    serial: bool = False
    """Contexts are spoken one after the other; else at once, told apart by their ids."""
    late_key: bool = False
    """The API key may stand in the first message."""


WIRES: tuple[Wire, ...] = ()
