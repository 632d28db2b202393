"""What every format of a growing file or endless stream looks like from outside."""

from __future__ import annotations

from typing import Protocol

from sessions.audio.pcm import Pcm


class StreamEncoder(Protocol):
    """PCM in runs of any length, bytes out as soon as the format can give them. However the PCM is cut, the bytes of
    all calls together are the same.

    Encoding may take milliseconds and releases the GIL: call it in a worker thread, one encoder in one thread at a
    time. What an encoder needs is made when first needed and freed with it.
    """

    def push(self, pcm: Pcm) -> bytes:
        """Mono float32 in [-1, 1] at the format's rate; the first bytes hold the header, where there is one."""
        ...

    def finish(self) -> bytes:
        """The last of the sound and the end of the stream; nothing is pushed after it."""
        ...
