"""A recording inside the request itself: ``data:audio/wav;base64,...``."""

from __future__ import annotations

import base64
import binascii

from realtime.references.addresses import refuse_address

PREFIX = "data:"
# A multiple of four. Python's lock is held for the whole of a piece.
CHARS_PER_PIECE = 65_536


def decode_data_uri(uri: str, max_bytes: int) -> bytes:
    """Raises ``InvalidRequest``."""
    head, comma, text = uri.removeprefix(PREFIX).partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise refuse_address("a data URI must be of the form data:audio/...;base64,...")
    if (len(text) - text[-2:].count("=")) * 3 // 4 > max_bytes:
        raise refuse_address(f"it is larger than max_upload_bytes, {max_bytes}")
    if "=" in text[:-2]:
        raise refuse_address("its base64 is broken")
    pieces = (text[start : start + CHARS_PER_PIECE] for start in range(0, len(text), CHARS_PER_PIECE))
    try:
        return b"".join(base64.b64decode(piece, validate=True) for piece in pieces)
    except (binascii.Error, ValueError):
        raise refuse_address("its base64 is broken") from None
