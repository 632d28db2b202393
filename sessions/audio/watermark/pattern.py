"""Keyed pattern of the watermark: the sign of each cell of time and frequency, and the payload in it.

Cells of ``FRAME_MS`` by one band repeat after ``PERIOD_FRAMES``. A third of them are pilots, whose signs follow from
the key alone. The others hold the payload: 32 bits and a checksum in a convolutional code.
"""

from __future__ import annotations

import binascii
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FRAME_MS = 20
# 1.92 s.
PERIOD_FRAMES = 96
PAYLOAD_BITS = 32
CHECKSUM_BITS = 16
# Convolutional code of rate 1/2 and constraint length 7, ended with zeros.
GENERATORS = (0o171, 0o133)
MEMORY_BITS = 6
NUM_STATES = 1 << MEMORY_BITS
NUM_CODE_BITS = 2 * (PAYLOAD_BITS + CHECKSUM_BITS + MEMORY_BITS)
# Code words that a decoder tries. A wrong one matches its checksum once in 65,536, so that a window which cannot be
# read gives a wrong payload once in about 2,000.
NUM_WORDS = 32
# Edges of the bands: 220 Hz wide, and 13 % of their frequency from 1.7 kHz on.
MIN_BAND_HZ, MAX_BAND_HZ = 200.0, 7_000.0
MIN_WIDTH_HZ, RELATIVE_WIDTH = 220.0, 0.13

Signs = npt.NDArray[np.float32]


def _band_edges() -> npt.NDArray[np.float64]:
    edges = [MIN_BAND_HZ]
    while edges[-1] < MAX_BAND_HZ:
        edges.append(edges[-1] + max(MIN_WIDTH_HZ, RELATIVE_WIDTH * edges[-1]))
    return np.array(edges)


BAND_EDGES_HZ = _band_edges()
NUM_BANDS = BAND_EDGES_HZ.size - 1


@dataclass(frozen=True, slots=True)
class CellPattern:
    """Cells of one key. Arrays are [frames, bands]."""

    # -1 or 1.
    signs: Signs
    # Index of the code bit that a cell holds; -1 for a pilot.
    bit_indices: npt.NDArray[np.int64]

    @classmethod
    def from_key(cls, key: bytes) -> CellPattern:
        num_cells = PERIOD_FRAMES * NUM_BANDS
        stream = hashlib.shake_256(b"voicewire watermark cells" + key).digest(9 * num_cells)
        signs = np.frombuffer(stream[:num_cells], np.uint8) % 2 * 2.0 - 1
        order = np.argsort(np.frombuffer(stream[num_cells:], "<u8"), kind="stable")
        bits = np.full(num_cells, -1)
        data = order[num_cells // 3 :]
        bits[data] = np.arange(data.size) % NUM_CODE_BITS
        shape = (PERIOD_FRAMES, NUM_BANDS)
        return cls(signs.astype(np.float32).reshape(shape), bits.reshape(shape))

    def signs_of(self, payload: int) -> Signs:
        """Signs of all cells with the payload in them."""
        code = np.append(encode(payload), 1)  # the last is that of pilots
        return np.asarray(self.signs * code[self.bit_indices], np.float32)


def encode(payload: int) -> npt.NDArray[np.float64]:
    """Code bits of a payload as -1 and 1. Raises ``ValueError`` for more than 32 bits."""
    if not 0 <= payload < 1 << PAYLOAD_BITS:
        raise ValueError(f"payload must be from 0 to {(1 << PAYLOAD_BITS) - 1}, is {payload}")
    word = payload << CHECKSUM_BITS | _checksum(payload)
    state, code = 0, []
    for shift in range(PAYLOAD_BITS + CHECKSUM_BITS - 1, -MEMORY_BITS - 1, -1):
        bit = word >> shift & 1 if shift >= 0 else 0
        register = bit << MEMORY_BITS | state
        code += [(register & generator).bit_count() % 2 for generator in GENERATORS]
        state = register >> 1
    return np.array(code) * 2.0 - 1


# Registers that lead to each state: its own bits, and one that drops out; and their code bits.
_REGISTERS = np.arange(NUM_STATES)[:, None] << 1 | np.arange(2)
_PARITIES = np.array([[(r & g).bit_count() % 2 * 2.0 - 1 for g in GENERATORS] for r in range(2 * NUM_STATES)])


def decode(soft_bits: npt.NDArray[np.float64], num_words: int = NUM_WORDS) -> int | None:
    """Return the payload of the likeliest code word whose checksum matches.

    A list Viterbi decoder tries ``num_words`` code words, the likeliest first. ``None`` if no checksum matches.
    """
    metrics = np.full((NUM_STATES, num_words), -np.inf)
    metrics[0, 0] = 0
    steps = []
    for pair in soft_bits.reshape(-1, 2):
        branches = (_PARITIES @ pair)[_REGISTERS]
        # By state: the words of both states before it.
        options = (metrics[_REGISTERS % NUM_STATES] + branches[:, :, None]).reshape(NUM_STATES, -1)
        best = np.argsort(-options, axis=1, kind="stable")[:, :num_words]
        metrics = np.take_along_axis(options, best, 1)
        steps.append(best)
    for rank in range(num_words):
        word = _trace(steps, rank)
        payload, checksum = word >> CHECKSUM_BITS, word & ((1 << CHECKSUM_BITS) - 1)
        if checksum == _checksum(payload):
            return payload
    return None


def _trace(steps: Sequence[npt.NDArray[np.int64]], rank: int) -> int:
    """Return the bits of the word that ends at this rank."""
    num_words = steps[0].shape[1]
    state, word = 0, 0
    for position, best in enumerate(reversed(steps)):
        if position >= MEMORY_BITS:
            word |= (state >> (MEMORY_BITS - 1)) << (position - MEMORY_BITS)
        way, rank = divmod(int(best[state, rank]), num_words)
        state = int(_REGISTERS[state, way]) % NUM_STATES
    return word


def _checksum(payload: int) -> int:
    return binascii.crc_hqx(payload.to_bytes(4, "big"), 0xFFFF)


def band_weights(sample_rate: int, num_bins: int) -> npt.NDArray[np.float64]:
    """Share of each band in each bin of a spectrum from 0 to half the sample rate, [bands, bins]; the edges overlap by
    a third of a band."""
    frequencies = np.linspace(0, sample_rate / 2, num_bins)
    low, high = BAND_EDGES_HZ[:-1, None], BAND_EDGES_HZ[1:, None]
    overlap = MIN_WIDTH_HZ / 3
    rising = np.clip((frequencies - low) / overlap + 0.5, 0, 1)
    falling = np.clip((high - frequencies) / overlap + 0.5, 0, 1)
    return np.asarray(np.minimum(rising, falling))
