"""Signals, cuts through them, recordings of every kind, and FFmpeg to read streams back."""

from __future__ import annotations

import io
import itertools
import struct
from functools import cache

import av
import numpy as np
from hypothesis import strategies as st

from sessions.audio.pcm import Pcm
from sessions.config import Encoding

MAX_HARMONICS = 60


@cache
def speech_like(num_samples: int, sample_rate: int, seed: int) -> Pcm:
    """Voiced harmonics under three moving formants, fricative noise, and pauses, at syllable speed; peak 0.3."""
    random = np.random.default_rng(seed)
    time_s = np.arange(num_samples) / sample_rate

    def wander(low: float, high: float, changes_per_s: float) -> np.ndarray:
        knots_s = np.arange(0, time_s[-1] + 2 / changes_per_s, 1 / changes_per_s)
        return np.interp(time_s, knots_s, random.uniform(low, high, knots_s.size))

    pitch_hz = wander(100, 220, 3)
    phase = 2 * np.pi * np.cumsum(pitch_hz) / sample_rate
    formants = [(wander(300, 800, 6), 80, 1.0), (wander(900, 2200, 6), 110, 0.5), (wander(2300, 3200, 6), 160, 0.25)]
    voiced = np.zeros(num_samples)
    for harmonic in range(1, min(int(0.45 * sample_rate / 100), MAX_HARMONICS)):
        frequency = harmonic * pitch_hz
        level = sum(gain / (1 + ((frequency - center) / width) ** 2) for center, width, gain in formants) + 0.003
        voiced += np.where(frequency < 0.45 * sample_rate, level, 0) * np.sin(harmonic * phase + 0.7 * harmonic**2)
    spectrum = np.fft.rfft(random.standard_normal(num_samples))
    spectrum *= np.exp(-(((np.fft.rfftfreq(num_samples, 1 / sample_rate) - 5000) / 2500) ** 2))
    hiss = np.fft.irfft(spectrum, num_samples)
    syllables = 2 * np.pi * 3.7 * time_s
    vowel = np.clip(2 * np.sin(syllables + random.uniform(0, 6)) + 0.8, 0, 1)
    fricative = np.clip(2 * np.sin(syllables + random.uniform(0, 6)) - 1.2, 0, 1)
    speech = 0.3 * vowel * voiced / np.abs(voiced).max() + 0.05 * fricative * hiss / hiss.std()
    signal = (speech + 1e-4 * random.standard_normal(num_samples)).astype(np.float32)
    signal.flags.writeable = False
    return signal


@st.composite
def pieces(draw: st.DrawFn, signal: Pcm, max_cuts: int = 8) -> list[Pcm]:
    """The signal, cut anywhere; pieces may be empty."""
    cuts = sorted(draw(st.lists(st.integers(0, signal.size), max_size=max_cuts)))
    return [signal[a:b] for a, b in itertools.pairwise([0, *cuts, signal.size])]


def noise(num_samples: int, seed: int = 0) -> Pcm:
    return np.random.default_rng(seed).uniform(-1, 1, num_samples).astype(np.float32)


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
