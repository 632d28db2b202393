"""Frames of a WebSocket, cut out of what comes (5.2 of RFC 6455). No input or output."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Literal

from websockets.utils import apply_mask

# First byte of an unfragmented message, and the type of its payload.
TEXT, BINARY = 0x81, 0x82
WHOLE: dict[int, Literal["text", "bytes"]] = {TEXT: "text", BINARY: "bytes"}
FIN, OPCODE = 0x80, 0x0F
MASKED, LENGTH = 0x80, 0x7F
LENGTH_BYTES = {126: 2, 127: 8}
MASK_BYTES = 4

# What a server sends before up to 125 bytes, up to 64 KiB less one, and more.
SHORT_HEAD, MIDDLE_HEAD, LONG_HEAD = struct.Struct(">BB"), struct.Struct(">BBH"), struct.Struct(">BBQ")


def whole_frame(message: str | bytes) -> bytes:
    """Return an unfragmented message as a server sends it, without a mask."""
    kind, data = (TEXT, message.encode()) if isinstance(message, str) else (BINARY, message)
    size = len(data)
    if size < 126:
        return SHORT_HEAD.pack(kind, size) + data
    return (MIDDLE_HEAD.pack(kind, 126, size) if size < 1 << 16 else LONG_HEAD.pack(kind, 127, size)) + data


class FrameSplitter:
    """Bytes in pieces of any length, masked frames out, whole and as they came. Once ``broken``, by one that is longer
    than ``max_bytes`` or not masked, what comes is given as it comes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rest = bytearray()
        # Bytes that the remainder needs before a frame can be parsed.
        self._needed = 0
        self.is_broken = False

    def push(self, piece: bytes) -> Iterator[bytes]:
        data = piece
        if self._rest:
            self._rest += piece
            if len(self._rest) < self._needed:
                return
            data = bytes(self._rest)
            self._rest.clear()
        at = 0
        while at < len(data):
            size = self._size(data[at : at + 10])
            if self.is_broken:
                size = len(data) - at
            if at + size > len(data):
                self._rest += data[at:]
                self._needed = size
                return
            yield data[at : at + size]
            at += size

    def _size(self, head: bytes) -> int:
        """Return the size of the frame, or of the part needed to compute it."""
        if len(head) < 2:
            return 2
        length = head[1] & LENGTH
        begin = 2 + LENGTH_BYTES.get(length, 0)
        if len(head) < begin:
            return begin
        if begin > 2:
            length = int.from_bytes(head[2:begin], "big")
        self.is_broken = length > self._max_bytes or not head[1] & MASKED
        return begin + MASK_BYTES + length


def payload(frame: bytes) -> bytes:
    mask_at = 2 + LENGTH_BYTES.get(frame[1] & LENGTH, 0)
    data_at = mask_at + MASK_BYTES
    return apply_mask(frame[data_at:], frame[mask_at:data_at])
