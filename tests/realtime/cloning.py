"""A server whose engine listens to recordings, and what clients send it."""

from __future__ import annotations

import msgspec

from tests.fakes.engine import FAKE_INFO, FakeSpeechEngine
from tests.realtime.live_server import QUICK

EMBEDDING_SIZE = 8
BASE_INFO = msgspec.structs.replace(
    FAKE_INFO,
    model="a fake base",
    task="base",
    can_clone=True,
    can_encode=True,
    embedding_size=EMBEDDING_SIZE,
    num_codebooks=4,
    codebook_size=2_048,
)


def cloning_engine(**changes: object) -> FakeSpeechEngine:
    return FakeSpeechEngine(QUICK, info=msgspec.structs.replace(BASE_INFO, **changes))
