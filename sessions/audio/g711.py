"""mu-law and A-law at 8 kHz, by tables.

Contract: the segment algorithm of ITU-T G.711 as the ITU's reference code has it, on 16-bit samples. The low bits are
dropped (two in mu-law, four in A-law), negative samples by one's complement, so that -1 has the code of "minus zero".
Other encoders, which round or negate, differ in some hundreds of the 65,536 inputs, never by more than one code.
"""

from __future__ import annotations

from functools import cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from sessions.audio.pcm import S16, Pcm, float_to_s16, s16_to_float

Codes = npt.NDArray[np.uint8]
Scalar = TypeVar("Scalar", np.uint8, np.int16)

MULAW_BIAS = 33
MULAW_MAX = 8_191


def pcm_to_mulaw(pcm: Pcm) -> bytes:
    return mulaw_encode_table()[float_to_s16(pcm).view(np.uint16)].tobytes()


def mulaw_to_pcm(data: bytes) -> Pcm:
    return s16_to_float(mulaw_decode_table()[np.frombuffer(data, np.uint8)])


def pcm_to_alaw(pcm: Pcm) -> bytes:
    return alaw_encode_table()[float_to_s16(pcm).view(np.uint16)].tobytes()


def alaw_to_pcm(data: bytes) -> Pcm:
    return s16_to_float(alaw_decode_table()[np.frombuffer(data, np.uint8)])


@cache
def mulaw_encode_table() -> Codes:
    """65,536 codes, indexed by the sample's bits read as an unsigned number."""
    samples = _every_sample()
    magnitude = np.minimum((_ones_complement(samples) >> 2) + MULAW_BIAS, MULAW_MAX)
    segment = _bit_length(magnitude >> 6)
    code = (7 - segment) << 4 | (15 - (magnitude >> (segment + 1) & 15))
    return _table(np.where(samples < 0, code, code | 0x80), np.uint8)


@cache
def mulaw_decode_table() -> S16:
    inverted = ~np.arange(256)
    segment, step = inverted >> 4 & 7, inverted & 15
    magnitude = ((step << 3) + 132 << segment) - 132
    return _table(np.where(inverted & 0x80, -magnitude, magnitude), np.int16)


@cache
def alaw_encode_table() -> Codes:
    """65,536 codes, indexed by the sample's bits read as an unsigned number."""
    samples = _every_sample()
    magnitude = _ones_complement(samples) >> 4
    segment = _bit_length(magnitude >> 4)
    code = segment << 4 | (magnitude >> np.maximum(segment - 1, 0) & 15)
    return _table(np.where(samples < 0, code, code | 0x80) ^ 0x55, np.uint8)


@cache
def alaw_decode_table() -> S16:
    codes = np.arange(256) ^ 0x55
    segment, step = codes >> 4 & 7, codes & 15
    magnitude = np.where(segment == 0, (step << 4) + 8, (step << 4) + 264 << np.maximum(segment - 1, 0))
    return _table(np.where(codes & 0x80, magnitude, -magnitude), np.int16)


def _every_sample() -> npt.NDArray[np.int64]:
    return np.arange(65_536, dtype=np.uint16).view(np.int16).astype(np.int64)


def _ones_complement(samples: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.where(samples < 0, ~samples, samples)


def _bit_length(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.frexp(values.astype(np.float64))[1].astype(np.int64)


def _table(values: npt.NDArray[np.int64], dtype: type[Scalar]) -> npt.NDArray[Scalar]:
    table = values.astype(dtype)
    table.flags.writeable = False
    return table
