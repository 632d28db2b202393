"""Write WAV headers around mono s16le, and complete files whose length was unknown."""

from __future__ import annotations

import struct

from sessions.audio.pcm import Pcm, pcm_to_s16le
from sessions.config import AudioFormat, Encoding

UNKNOWN_BYTES = 0xFFFFFFFF
HEADER_BYTES = 44
BYTES_PER_SAMPLE = 2
MAX_SAMPLES = (UNKNOWN_BYTES - HEADER_BYTES) // BYTES_PER_SAMPLE


def wav_header(sample_rate: int, num_samples: int | None = None) -> bytes:
    """44 bytes. With ``None`` both lengths are 0xFFFFFFFF: players then read to the end of the stream.

    Raises ``ValueError`` for more samples than the format can count.
    """
    if num_samples is not None and not 0 <= num_samples <= MAX_SAMPLES:
        raise ValueError(f"num_samples must be between 0 and {MAX_SAMPLES}, got {num_samples}")
    data_bytes = UNKNOWN_BYTES if num_samples is None else num_samples * BYTES_PER_SAMPLE
    riff_bytes = UNKNOWN_BYTES if num_samples is None else data_bytes + HEADER_BYTES - 8
    pcm, mono, bits = 1, 1, 8 * BYTES_PER_SAMPLE
    layout = (pcm, mono, sample_rate, sample_rate * BYTES_PER_SAMPLE, BYTES_PER_SAMPLE, bits)
    return struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", riff_bytes, b"WAVE", b"fmt ", 16, *layout, b"data", data_bytes)


def wav_file(pcm: Pcm, sample_rate: int) -> bytes:
    return wav_header(sample_rate, pcm.size) + pcm_to_s16le(pcm)


# The eight bytes of a FLAC header whose low 36 bits are the number of samples, 0 if unknown.
FLAC_TOTAL = slice(18, 26)


def finalize_file(stream: bytes, audio: AudioFormat, num_samples: int) -> bytes:
    """Set the length in the header of formats that have one; return all others unchanged."""
    match audio.encoding:
        case Encoding.WAV:
            return wav_header(audio.sample_rate, num_samples) + stream[HEADER_BYTES:]
        case Encoding.FLAC:
            total = int.from_bytes(stream[FLAC_TOTAL], "big") | num_samples
            return stream[: FLAC_TOTAL.start] + total.to_bytes(8, "big") + stream[FLAC_TOTAL.stop :]
        case _:
            return stream
