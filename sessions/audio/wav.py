"""Write WAV headers around mono s16le."""

from __future__ import annotations

import struct

from sessions.audio.pcm import Pcm, pcm_to_s16le

UNKNOWN_BYTES = 0xFFFFFFFF
HEADER_BYTES = 44
BYTES_PER_SAMPLE = 2
MAX_SAMPLES = (UNKNOWN_BYTES - HEADER_BYTES) // BYTES_PER_SAMPLE


def wav_header(sample_rate: int, num_samples: int | None = None, num_trailer_bytes: int = 0) -> bytes:
    """44 bytes. With ``None`` both lengths are 0xFFFFFFFF: players then read to the end of the stream. Else chunks of
    ``num_trailer_bytes`` may follow the samples.

    Raises ``ValueError`` for more samples than the format can count.
    """
    max_samples = MAX_SAMPLES - num_trailer_bytes // BYTES_PER_SAMPLE
    if num_samples is not None and not 0 <= num_samples <= max_samples:
        raise ValueError(f"num_samples must be between 0 and {max_samples}, got {num_samples}")
    data_bytes = UNKNOWN_BYTES if num_samples is None else num_samples * BYTES_PER_SAMPLE
    riff_bytes = UNKNOWN_BYTES if num_samples is None else data_bytes + HEADER_BYTES - 8 + num_trailer_bytes
    pcm, mono, bits = 1, 1, 8 * BYTES_PER_SAMPLE
    layout = (pcm, mono, sample_rate, sample_rate * BYTES_PER_SAMPLE, BYTES_PER_SAMPLE, bits)
    return struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", riff_bytes, b"WAVE", b"fmt ", 16, *layout, b"data", data_bytes)


def wav_file(pcm: Pcm, sample_rate: int) -> bytes:
    return wav_header(sample_rate, pcm.size) + pcm_to_s16le(pcm)
