"""HTTP/1.1 that limits the number of pieces of a body, and sends the head of a response with the first piece.

Each piece costs 20 us of the event loop that all connections share, even a piece of one byte.
"""

from __future__ import annotations

from typing import Any

import h11

# Pieces of any size that a body may have; more are allowed above a mean size.
SMALL_CHUNK_BYTES, MAX_SMALL_CHUNKS = 256, 1_000


class ChunkLimitedConnection(h11.Connection):
    """Connection of h11 for either role. A body in very small chunks breaks the protocol; with ``holds_head`` the head
    of a response waits for its body."""

    # Size of the current body.
    _num_bytes = _num_pieces = 0
    # True if the head of the coming response is to leave with what follows it.
    holds_head = False
    # Lost if the response is aborted before the first byte of its body.
    _held = b""

    def send(self, event: Any) -> Any:
        """Return the bytes of an event, behind those that were held."""
        data = super().send(event)
        if self.holds_head and data is not None:
            self.holds_head, self._held = False, data
            return b""
        if self._held and data is not None:
            data, self._held = self._held + data, b""
        return data

    def next_event(self) -> Any:
        """Return the next event; raises ``h11.RemoteProtocolError``."""
        event = super().next_event()
        # h11's events have an abstract base, with which ``isinstance`` is a function of Python.
        if type(event) is h11.Data:
            self._num_bytes += len(event.data)
            self._num_pieces += 1
            if self._num_pieces > MAX_SMALL_CHUNKS + self._num_bytes // SMALL_CHUNK_BYTES:
                raise h11.RemoteProtocolError(f"{self._num_bytes} bytes came in {self._num_pieces} pieces")
        elif type(event) is h11.EndOfMessage:
            self._num_bytes = self._num_pieces = 0
        return event
