"""PCM as it lives inside (float32 in [-1, 1]) and as it leaves (s16le), and how loud it is.

Clipping rule: full scale is 32,768, so that every s16 sample survives the way through float32 unchanged; a value is
rounded to the nearest step (half to even) and then held to [-32768, 32767]; a value that is no number is silence.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Pcm = npt.NDArray[np.float32]
S16 = npt.NDArray[np.int16]

FULL_SCALE = np.float32(32_768)
S16_MIN, S16_MAX = np.float32(-32_768), np.float32(32_767)
EMPTY: Pcm = np.zeros(0, np.float32)
EMPTY.flags.writeable = False


def float_to_s16(pcm: Pcm) -> S16:
    steps: Pcm = np.rint(pcm * FULL_SCALE)
    steps[np.isnan(steps)] = 0
    return steps.clip(S16_MIN, S16_MAX, out=steps).astype(np.int16)


def s16_to_float(samples: S16) -> Pcm:
    return samples.astype(np.float32) / FULL_SCALE


def within_full_scale(pcm: Pcm) -> Pcm:
    """The same rule for encoders that take floats: held to [-1, 1], and silence for what is no number."""
    held = np.clip(pcm, -1, 1)
    np.copyto(held, 0, where=np.isnan(held))
    return np.asarray(held, np.float32)


def pcm_to_f32le(pcm: Pcm) -> bytes:
    return within_full_scale(pcm).astype("<f4", copy=False).tobytes()


def pcm_to_s16le(pcm: Pcm) -> bytes:
    return float_to_s16(pcm).astype("<i2", copy=False).tobytes()


def s16le_to_pcm(data: bytes) -> Pcm:
    """Convert 16-bit little-endian samples to floats; raises ``ValueError`` when the bytes end inside a sample."""
    if len(data) % 2:
        raise ValueError(f"s16le data must be a whole number of samples of 2 bytes, got {len(data)} bytes")
    return s16_to_float(np.frombuffer(data, "<i2").astype(np.int16, copy=False))
