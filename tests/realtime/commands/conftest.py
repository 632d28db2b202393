from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from tests.fakes.engine import FakeScript, FakeSpeechEngine

INSTANT = FakeScript(first_chunk_s=0.0, real_time_factor=0.0)


@pytest.fixture
def fake_engine(monkeypatch) -> FakeSpeechEngine:
    """What commands get for an engine."""
    engine = FakeSpeechEngine(INSTANT, step_s=0.0)
    client = SimpleNamespace(create_engine=lambda model, **settings: engine)
    monkeypatch.setitem(sys.modules, "engine.launch", client)
    return engine
