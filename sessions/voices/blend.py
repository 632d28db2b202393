"""A voice between two voices."""

from __future__ import annotations

import numpy as np

from engine.api import ClonedVoice, InvalidRequest


def blend(first: ClonedVoice, second: ClonedVoice, weight: float) -> ClonedVoice:
    """The embedding ``weight`` of the way from the first to the second, as long as theirs are on the way there.

    Recordings cannot be blended, so what comes out is cloned by its embedding alone. Raises ``InvalidRequest``.
    """
    if not 0 <= weight <= 1:
        raise InvalidRequest(f"weight must be 0 to 1, is {weight:g}", "weight")
    one, other = (np.frombuffer(voice.embedding, np.float32).astype(np.float64) for voice in (first, second))
    if one.size != other.size:
        message = f"voices of {one.size} and {other.size} numbers belong to two models and cannot be blended"
        raise InvalidRequest(message, "voice")
    mixed = (1 - weight) * one + weight * other
    length = (1 - weight) * np.linalg.norm(one) + weight * np.linalg.norm(other)
    mixed *= length / max(float(np.linalg.norm(mixed)), 1e-12)
    return ClonedVoice(embedding=mixed.astype(np.float32).tobytes())
