"""Voices that nobody recorded."""

from __future__ import annotations

import numpy as np

from engine.api import ClonedVoice

TRANSCRIPT = "hello world, how are you today"


def cloned(num_tokens: int = 40, seed: int = 0, with_transcript: bool = True) -> ClonedVoice:
    random = np.random.default_rng(seed)
    return ClonedVoice(
        embedding=random.standard_normal(192).astype(np.float32).tobytes(),
        codes=random.integers(0, 6561, num_tokens).astype(np.int16).tobytes(),
        num_codebooks=1,
        transcript=TRANSCRIPT if with_transcript else "",
        mel=random.standard_normal((2 * num_tokens, 80)).astype(np.float32).tobytes(),
    )
