"""A stream that has ended as a file that knows its length."""

from __future__ import annotations

from sessions.audio.wav import HEADER_BYTES, wav_header
from sessions.config import AudioFormat, Encoding

# The eight bytes of a FLAC header whose low 36 bits are the number of samples, 0 if unknown.
FLAC_TOTAL = slice(18, 26)


def finalize_file(stream: bytes, audio: AudioFormat, num_samples: int) -> bytes:
    """Of formats whose header tells the length, with the length; all others as they are."""
    match audio.encoding:
        case Encoding.WAV:
            return wav_header(audio.sample_rate, num_samples) + stream[HEADER_BYTES:]
        case Encoding.FLAC:
            total = int.from_bytes(stream[FLAC_TOTAL], "big") | num_samples
            return stream[: FLAC_TOTAL.start] + total.to_bytes(8, "big") + stream[FLAC_TOTAL.stop :]
        case _:
            return stream
