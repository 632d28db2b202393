"""Marked clips, and what is done to them before the mark is looked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.watermark.clips import MAX_CLIP_S, MIN_CLIP_S, RATE
from sessions.audio.formats.registry import stream_encoder
from sessions.audio.g711 import mulaw_to_pcm, pcm_to_mulaw
from sessions.audio.pcm import Pcm, float_to_s16, s16_to_float
from sessions.audio.recordings.decode import decode_recording
from sessions.audio.resampler import Resampler
from sessions.audio.watermark.detector import DETECT_RATE
from sessions.audio.watermark.embedder import Watermark
from sessions.config import AudioFormat, Encoding

KEY = b"benchmarks/watermark".ljust(32, b".")
PAYLOAD = 0xC0FFEE42
PUSH_SAMPLES = RATE * 80 // 1000

Attack = Callable[[Pcm], Pcm]


def mark(pcm: Pcm, payload: int) -> Pcm:
    """Mark a clip in pieces of 80 ms, as an engine emits them."""
    stream = Watermark(KEY, payload).create_embedder(RATE)
    starts = range(0, pcm.size, PUSH_SAMPLES)
    return np.concatenate([stream.push(pcm[start : start + PUSH_SAMPLES]) for start in starts])


def resample(pcm: Pcm, from_rate: int, to_rate: int) -> Pcm:
    resampler = Resampler(from_rate, to_rate)
    return np.concatenate([resampler.push(pcm), resampler.flush()])


def through_rate(rate: int) -> Attack:
    return lambda pcm: resample(resample(pcm, RATE, rate), rate, RATE)


def through_file(encoding: Encoding, bitrate: int) -> Attack:
    """Encode and decode."""

    def attack(pcm: Pcm) -> Pcm:
        encoder = stream_encoder(AudioFormat(encoding=encoding, sample_rate=RATE, bitrate=bitrate))
        return decode_recording(encoder.push(pcm) + encoder.finish(), RATE, MAX_CLIP_S)

    return attack


def through_mulaw(pcm: Pcm) -> Pcm:
    return resample(mulaw_to_pcm(pcm_to_mulaw(resample(pcm, RATE, 8_000))), 8_000, RATE)


def add_noise(pcm: Pcm) -> Pcm:
    """Add white noise, 20 dB below the level of the whole clip."""
    noise = np.random.default_rng(pcm.size).standard_normal(pcm.size)
    return np.asarray(pcm + np.sqrt(np.mean(pcm**2)) / 10 * noise, np.float32)


def cut(start_s: float, end_s: float) -> Attack:
    return lambda pcm: pcm[round(start_s * DETECT_RATE) : round(end_s * DETECT_RATE)]


FIRST = cut(0, MIN_CLIP_S)
# Each changes a whole clip.
CHANGES: dict[str, Attack] = {
    "clean": lambda pcm: pcm,
    "opus_16k": through_file(Encoding.OGG_OPUS, 16_000),
    "mp3_64k": through_file(Encoding.MP3, 64_000),
    "mulaw_8khz": through_mulaw,
    "resampled_16khz": through_rate(16_000),
    "resampled_44khz": through_rate(44_100),
    "noise_20db": add_noise,
    "gain_plus_6db": lambda pcm: np.clip(pcm * np.float32(2), -1, 1),
    "gain_minus_6db": lambda pcm: s16_to_float(float_to_s16(pcm / 2)),
}
# What is cut of which change, after it, at the detector's rate.
CUTS: dict[str, tuple[str, Attack]] = {
    "cut_start_of_1.3_s": ("clean", lambda pcm: pcm[20_671:]),
    "cut_middle_of_1_s": ("clean", lambda pcm: np.concatenate([pcm[:40_007], pcm[56_007:]])),
    "first_6.5_s": ("clean", FIRST),
    "first_6.5_s_of_opus_16k": ("opus_16k", FIRST),
    "first_6.5_s_of_noise_20db": ("noise_20db", FIRST),
    "first_6.5_s_of_mulaw_8khz": ("mulaw_8khz", FIRST),
    "first_2_s": ("clean", cut(0, 2)),
    "from_1_s_2_s": ("clean", cut(1, 3)),
    "first_3_s": ("clean", cut(0, 3)),
    "first_5_s": ("clean", cut(0, 5)),
    "from_1_s_2_s_of_opus_16k": ("opus_16k", cut(1, 3)),
    "from_1_s_3_s_of_noise_20db": ("noise_20db", cut(1, 4)),
}
ATTACKS = (*CHANGES, *CUTS)


def attack_all(marked: Pcm) -> Iterator[tuple[str, Pcm]]:
    """Return the names of all attacks, each with what it leaves of a clip, at the detector's rate."""
    changed = {name: resample(change(marked), RATE, DETECT_RATE) for name, change in CHANGES.items()}
    yield from changed.items()
    for name, (change, remove) in CUTS.items():
        yield name, remove(changed[change])
