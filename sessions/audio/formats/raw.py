"""Define audio streams, and the formats without an encoder: raw PCM, G.711 and WAV."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sessions.audio.pcm import Pcm, pcm_to_s16le
from sessions.audio.wav import wav_header


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


class RawStream:
    """Holds nothing back. ``header`` comes before the first samples, also when there are none."""

    def __init__(self, to_bytes: Callable[[Pcm], bytes], header: bytes = b"") -> None:
        self._to_bytes = to_bytes
        self._header = header

    def push(self, pcm: Pcm) -> bytes:
        header, self._header = self._header, b""
        return header + self._to_bytes(pcm)

    def finish(self) -> bytes:
        header, self._header = self._header, b""
        return header


def wav_stream(sample_rate: int) -> RawStream:
    """s16le; both lengths in the header say "unknown", so that players read to the end of the stream."""
    return RawStream(pcm_to_s16le, wav_header(sample_rate))
