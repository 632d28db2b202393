"""Formats that are nothing but samples, one after the other: raw PCM, G.711, and WAV."""

from __future__ import annotations

from collections.abc import Callable

from sessions.audio.pcm import Pcm, pcm_to_s16le
from sessions.audio.wav import wav_header


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
