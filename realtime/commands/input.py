"""Text as it arrives on a file descriptor, a token or a page at a time."""

from __future__ import annotations

import asyncio
import codecs
import os
import threading
from collections.abc import AsyncIterator

READ_BYTES = 4_096


async def arriving_text(descriptor: int) -> AsyncIterator[str]:
    """Yield UTF-8 text as soon as it can be read. What is no UTF-8 becomes U+FFFD.

    The thread that reads is a daemon: nothing waits for input that never comes.
    """
    pieces: asyncio.Queue[bytes] = asyncio.Queue()
    arguments = (descriptor, asyncio.get_running_loop(), pieces)
    threading.Thread(target=_read, args=arguments, name="voicewire input", daemon=True).start()
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    while piece := await pieces.get():
        if text := decoder.decode(piece):
            yield text
    if rest := decoder.decode(b"", final=True):
        yield rest


def _read(descriptor: int, loop: asyncio.AbstractEventLoop, pieces: asyncio.Queue[bytes]) -> None:
    piece = b"..."
    while piece and not loop.is_closed():
        try:
            piece = os.read(descriptor, READ_BYTES)
        except OSError:  # the terminal is gone
            piece = b""
        try:
            loop.call_soon_threadsafe(pieces.put_nowait, piece)
        except RuntimeError:  # the loop is closed
            return
