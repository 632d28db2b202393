"""Recordings of every kind, as people send them."""

from __future__ import annotations

import io
import struct

import av
import numpy as np

from sessions.audio.pcm import Pcm

CONTAINERS = {
    "wav": ("wav", "pcm_s16le", "s16"),
    "flac": ("flac", "flac", "s16"),
    "mp3": ("mp3", "libmp3lame", "fltp"),
    "ogg": ("ogg", "libopus", "flt"),
    "m4a": ("ipod", "aac", "fltp"),
}


def tone(length_s: float, sample_rate: int, hz: float = 440.0) -> Pcm:
    return (0.5 * np.sin(2 * np.pi * hz * np.arange(int(length_s * sample_rate)) / sample_rate)).astype(np.float32)


def recording(kind: str, channels: list[Pcm], sample_rate: int) -> bytes:
    container, codec, sample_format = CONTAINERS[kind]
    file = io.BytesIO()
    with av.open(file, "w", format=container) as output:
        stream = output.add_stream(codec, rate=sample_rate)
        stream.layout = "mono" if len(channels) == 1 else "stereo"
        stream.format = sample_format
        size = stream.codec_context.frame_size or 1_024
        fit = av.AudioResampler(sample_format, stream.layout.name, sample_rate)
        for at in range(0, channels[0].size, size):
            planar = np.stack([channel[at : at + size] for channel in channels])
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(planar), format="fltp", layout=stream.layout.name)
            frame.sample_rate, frame.pts = sample_rate, at
            for fitted in fit.resample(frame):
                output.mux(stream.encode(fitted))
        output.mux(stream.encode(None))
    return file.getvalue()


def float_wav(samples: Pcm, sample_rate: int) -> bytes:
    data = samples.astype("<f4").tobytes()
    layout = struct.pack("<HHIIHH", 3, 1, sample_rate, 4 * sample_rate, 4, 32)
    chunks = b"fmt " + struct.pack("<I", 16) + layout + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


def wav_that_lies(declared_bytes: int) -> bytes:
    """A header that promises much before a hundred samples."""
    head = float_wav(np.zeros(0, np.float32), 8_000)
    return head[:-4] + struct.pack("<I", declared_bytes) + bytes(400)


def flac_bomb(length_s: float) -> bytes:
    """Silence, which FLAC makes next to nothing of, and a header that does not tell how long it is."""
    data = recording("flac", [np.zeros(int(length_s * 8_000), np.float32)], 8_000)
    return data[:18] + (int.from_bytes(data[18:26], "big") >> 36 << 36).to_bytes(8, "big") + data[26:]
