"""Going over from one signal to another, and to and from silence, without a click."""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache

import numpy as np

from sessions.audio.pcm import Pcm


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


def ramp_in(pcm: Pcm, num_samples: int) -> Pcm:
    """``pcm`` with its first samples raised from silence: for audio that comes after an underrun."""
    length = min(num_samples, pcm.size)
    return np.concatenate([pcm[:length] * hann_ramp(length), pcm[length:]])


def ramp_out(pcm: Pcm, num_samples: int) -> Pcm:
    """The first samples of ``pcm``, lowered to silence: the last thing to send of audio that was cancelled."""
    length = min(num_samples, pcm.size)
    return pcm[:length] * hann_ramp(length)[::-1]


@lru_cache(maxsize=64)
def hann_ramp(num_samples: int) -> Pcm:
    """Weights from near 0 to near 1; ``ramp + ramp[::-1]`` is 1."""
    middle_of_sample = (np.arange(num_samples) + 0.5) / max(num_samples, 1)
    ramp = (0.5 - 0.5 * np.cos(np.pi * middle_of_sample)).astype(np.float32)
    ramp.flags.writeable = False
    return ramp


def _correlation(old: Pcm, new: Pcm) -> np.float32:
    """Of two signals around zero, in [0, 1]; silence correlates with everything, so that it stays silence."""
    energy = np.sqrt(np.dot(old, old) * np.dot(new, new))
    return np.float32(np.clip(np.dot(old, new) / energy, 0, 1) if energy > 0 else 1)
