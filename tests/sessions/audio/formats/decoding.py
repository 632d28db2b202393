"""Reading streams back with FFmpeg, which wrote none of the containers among them."""

from __future__ import annotations

import io

import av
import numpy as np

from sessions.audio.pcm import Pcm
from sessions.config import Encoding

DEMUXERS = {
    Encoding.WAV: "wav",
    Encoding.MP3: "mp3",
    Encoding.AAC: "aac",
    Encoding.FLAC: "flac",
    Encoding.OGG_OPUS: "ogg",
}


def decode(data: bytes, encoding: Encoding) -> tuple[Pcm, int]:
    """All samples, and their rate."""
    with av.open(io.BytesIO(data), format=DEMUXERS[encoding]) as container:
        frames = list(container.decode(audio=0))
        rate = container.streams.audio[0].codec_context.sample_rate
    return np.concatenate([np.zeros(0, np.float32), *(as_float(frame.to_ndarray()[0]) for frame in frames)]), rate


def as_float(samples: np.ndarray) -> Pcm:
    if samples.dtype.kind == "f":
        return samples.astype(np.float32)
    return (samples / -float(np.iinfo(samples.dtype).min)).astype(np.float32)
