"""Voices that tests store."""

from __future__ import annotations

import zlib

import numpy as np

from engine.api import ClonedVoice
from sessions.voices.voice import StoredVoice, VoiceManifest

EMBEDDING_SIZE, NUM_CODEBOOKS = 64, 4


def voice(name: str, owner: str = "alice", num_frames: int = 25, transcript: str = "hello there") -> StoredVoice:
    """A function of its name, so that what is read back can be compared."""
    random = np.random.default_rng(zlib.crc32(name.encode()))
    codes = random.integers(0, 2_048, (num_frames, NUM_CODEBOOKS)).astype(np.int16)
    transcript = transcript if num_frames else ""
    clone = ClonedVoice(
        embedding=random.standard_normal(EMBEDDING_SIZE).astype(np.float32).tobytes(),
        codes=codes.tobytes(),
        num_codebooks=NUM_CODEBOOKS if num_frames else 0,
        transcript=transcript,
    )
    about = {"consent": "she said so", "description": f"{name}, warm", "created_s": 1_700_000_000, "source": "audio"}
    return StoredVoice(VoiceManifest(name=name, owner=owner, transcript=transcript, **about), clone)
