"""A recording inside the request itself: ``data:audio/wav;base64,...``."""

from __future__ import annotations

import base64
import binascii

from realtime.references.addresses import refused

PREFIX = "data:"


def decode_data_uri(uri: str, max_bytes: int) -> bytes:
    """Raises ``InvalidRequest``."""
    head, comma, text = uri.removeprefix(PREFIX).partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise refused("a data URI must be of the form data:audio/...;base64,...")
    if len(text.rstrip("=")) * 3 // 4 > max_bytes:
        raise refused(f"it is larger than max_upload_bytes, {max_bytes}")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise refused("its base64 is broken") from None
