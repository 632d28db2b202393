"""Crossfade overlapping chunks into one signal, and fade to and from silence without a click."""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache

import numpy as np

from engine.api import SpeechChunk
from sessions.audio.pcm import EMPTY, Pcm


class Fade(StrEnum):
    # Weights that sum to one: for two renderings of the same speech. Where they agree they pass bit for bit.
    HANN = "hann"
    # The same weights, raised by what the two lose to each other when they do not correlate: for speech that follows
    # other speech.
    EQUAL_POWER = "equal_power"


def crossfade(old: Pcm, new: Pcm, fade: Fade = Fade.HANN) -> Pcm:
    """Go from ``old`` to ``new``, which cover the same samples."""
    weight = hann_ramp(old.size)
    mixed = old + (new - old) * weight
    if fade is Fade.EQUAL_POWER:
        loss = 2 * weight * (1 - weight) * (1 - _correlation(old, new))
        mixed = mixed / np.sqrt(1 - loss)
    return mixed


@lru_cache(maxsize=64)
def hann_ramp(num_samples: int) -> Pcm:
    """Weights from near 0 to near 1; ``ramp + ramp[::-1]`` is 1."""
    middle_of_sample = (np.arange(num_samples) + 0.5) / max(num_samples, 1)
    ramp = (0.5 - 0.5 * np.cos(np.pi * middle_of_sample)).astype(np.float32)
    ramp.flags.writeable = False
    return ramp


def _correlation(old: Pcm, new: Pcm) -> np.float32:
    """Correlate two signals around zero, in [0, 1]; silence correlates with everything, so that it stays silence."""
    energy = np.sqrt(np.dot(old, old) * np.dot(new, new))
    return np.float32(np.clip(np.dot(old, new) / energy, 0, 1) if energy > 0 else 1)


class ChunkOrderError(ValueError):
    """A chunk that does not fit what the chunks before it declared: a fault of the engine that made the chunks."""


class Crossfader:
    """The chunks of one request in, its PCM out.

    A chunk's provisional tail is held back and crossfaded with the head of the next chunk, which renders the same
    samples again. Without provisional tails this is the identity, bit for bit, and nothing is held back. What comes
    out is as long as the span that the chunks cover, however they are cut.
    """

    def __init__(self, fade: Fade = Fade.HANN, start_sample: int = 0) -> None:
        self._fade = fade
        self._next_start_sample = start_sample
        # Held back: it comes again.
        self._tail = EMPTY
        # Repeated samples so far, fewer than the tail.
        self._again = EMPTY
        self._ended = False

    def push(self, chunk: SpeechChunk) -> Pcm:
        """Add a chunk and return the samples that no later chunk changes.

        Raises ``ChunkOrderError`` for a gap, an undeclared overlap, or a chunk after the last.
        """
        self._check(chunk)
        self._ended = chunk.last
        self._next_start_sample = chunk.start_sample + chunk.pcm.size - chunk.provisional_tail_samples
        pcm = self._crossfade_tail(chunk.pcm) if self._tail.size else chunk.pcm
        if chunk.last:
            return self._append_remainder(pcm)
        return self._hold_tail(pcm, chunk.provisional_tail_samples)

    def finish(self) -> Pcm:
        """The stream ended without its last chunk: what is held back comes out as it was first rendered."""
        self._ended = True
        return self._append_remainder(EMPTY)

    def _crossfade_tail(self, pcm: Pcm) -> Pcm:
        again = np.concatenate([self._again, pcm])
        length = self._tail.size
        if again.size < length:
            self._again = again
            return EMPTY
        met = crossfade(self._tail, again[:length], self._fade)
        self._tail = self._again = EMPTY
        return np.concatenate([met, again[length:]])

    def _hold_tail(self, pcm: Pcm, length: int) -> Pcm:
        if not length:
            return pcm
        self._tail = pcm[pcm.size - length :]
        return pcm[: pcm.size - length]

    def _append_remainder(self, pcm: Pcm) -> Pcm:
        rest, self._tail, self._again = self._tail, EMPTY, EMPTY
        return np.concatenate([pcm, rest]) if rest.size else pcm

    def _check(self, chunk: SpeechChunk) -> None:
        start, size, tail = chunk.start_sample, chunk.pcm.size, chunk.provisional_tail_samples
        held = self._tail.size - self._again.size
        if self._ended:
            raise ChunkOrderError(f"chunk at sample {start} comes after the last chunk")
        if start != self._next_start_sample:
            raise ChunkOrderError(f"chunk starts at sample {start}, expected {self._next_start_sample}")
        if not 0 <= tail <= size:
            raise ChunkOrderError(f"provisional_tail_samples must be between 0 and the chunk's {size}, got {tail}")
        if chunk.last and tail:
            raise ChunkOrderError(f"the last chunk has no provisional tail, got {tail} samples")
        if size < held and (tail or (chunk.last and size)):
            raise ChunkOrderError(f"chunk at sample {start} must cover the {held} samples held back, got {size}")
