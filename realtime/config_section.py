"""What every group of settings is."""

from __future__ import annotations

from msgspec import Struct


class SettingsSection(Struct, frozen=True, kw_only=True):
    """A group of settings; each field says in its ``Meta`` what it is and how far it may go."""
