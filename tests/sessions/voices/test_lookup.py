"""A stored voice is named in the settings and found when a response begins; two voices blend."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import ClonedVoice, InvalidRequest, UnknownVoice
from sessions.config import SpeechSettings
from sessions.registry import SessionRegistry
from sessions.voices.lookup import blend, resolve_stored_voice
from sessions.voices.store import VoiceStore
from sessions.voices.voice import SHARED, StoredVoice
from tests.fakes.engine import FAKE_INFO, FakeSpeechEngine
from tests.sessions.conftest import BURST, LIMITS
from tests.sessions.voices.voices import EMBEDDING_SIZE, NUM_CODEBOOKS, voice

CLONING = msgspec.structs.replace(
    FAKE_INFO, can_clone=True, embedding_size=EMBEDDING_SIZE, num_codebooks=NUM_CODEBOOKS, voices=()
)

pytestmark = pytest.mark.virtual_time


@pytest.fixture
def store(tmp_path: Path) -> VoiceStore:
    store = VoiceStore(tmp_path)
    for stored in (voice("ann", "alice"), voice("ann", SHARED, num_frames=3), voice("narrator", SHARED)):
        store.add(stored)
    return store


@pytest.fixture
async def registry(store: VoiceStore) -> AsyncIterator[SessionRegistry]:
    engine = FakeSpeechEngine(info=CLONING)
    await engine.start()
    registry = SessionRegistry(engine, LIMITS, voices=store)
    yield registry
    await registry.aclose()
    await engine.aclose()


def spoken_by(registry: SessionRegistry, key: str, settings: SpeechSettings) -> ClonedVoice | str | None:
    session = registry.create(key, settings)
    response = session.create_response(text="Hello.", text_closed=True)
    response.cancel()
    return response.settings.clone


async def test_one_s_own_voice_comes_before_a_shared_one(registry: SessionRegistry) -> None:
    ann = replace(BURST, voice="ann")
    assert spoken_by(registry, "alice", ann) == voice("ann", "alice").clone
    assert spoken_by(registry, "bob", ann) == voice("ann", SHARED, num_frames=3).clone
    assert spoken_by(registry, "", replace(BURST, voice="narrator")) == voice("narrator", SHARED).clone


async def test_session_keeps_the_voice_name_alone(registry: SessionRegistry, store: VoiceStore) -> None:
    session = registry.create("alice", replace(BURST, voice="ann"))
    assert session.settings.clone is None
    store.remove("alice", "ann")
    response = session.create_response(text="Hello.", text_closed=True)
    assert response.settings.clone == voice("ann", SHARED, num_frames=3).clone
    response.cancel()
    session.update(replace(session.settings, voice="narrator"))
    store.remove(SHARED, "narrator")
    with pytest.raises(UnknownVoice, match="narrator"):
        session.create_response(text="Hello.", text_closed=True)


async def test_an_unknown_name_is_refused(registry: SessionRegistry) -> None:
    with pytest.raises(UnknownVoice, match="nobody"):
        registry.create("alice", replace(BURST, voice="nobody"))


async def test_a_voice_of_the_caller_s_own_needs_no_name(registry: SessionRegistry) -> None:
    clone = voice("x").clone
    assert spoken_by(registry, "bob", replace(BURST, voice="nobody", clone=clone)) == clone


async def test_a_voice_for_another_model_is_refused(registry: SessionRegistry, store: VoiceStore) -> None:
    small = voice("small", SHARED)
    store.add(StoredVoice(small.manifest, ClonedVoice(embedding=bytes(12))))
    with pytest.raises(InvalidRequest, match="embedding has 3 numbers, fake takes 64") as refused:
        registry.create("alice", replace(BURST, voice="small"))
    assert refused.value.param == "voice"


async def test_voice_with_other_codebooks_is_refused(store: VoiceStore) -> None:
    info = msgspec.structs.replace(CLONING, num_codebooks=2 * NUM_CODEBOOKS)
    with pytest.raises(InvalidRequest, match=r"'ann' .*: its codes have 4 codebooks, fake takes 8") as refused:
        resolve_stored_voice(replace(BURST, voice="ann"), "alice", info, store)
    assert refused.value.param == "voice"


def cloned(*numbers: float) -> ClonedVoice:
    return ClonedVoice(embedding=np.asarray(numbers, np.float32).tobytes(), codes=b"\1\0", transcript="a")


def embedding(voice: ClonedVoice) -> np.ndarray:
    return np.frombuffer(voice.embedding, np.float32)


@given(st.floats(0, 1))
def test_a_blend_is_between_and_keeps_its_length(weight: float) -> None:
    mixed = blend(cloned(3, 0), cloned(0, 5), weight)
    assert np.linalg.norm(embedding(mixed)) == pytest.approx(3 + 2 * weight, rel=1e-5)
    assert embedding(mixed).min() >= 0
    assert (mixed.codes, mixed.transcript) == (b"", "")


def test_the_ends_are_the_voices() -> None:
    one, other = cloned(1, 2, 3), cloned(-4, 0, 2)
    np.testing.assert_allclose(embedding(blend(one, other, 0)), embedding(one), rtol=1e-6)
    np.testing.assert_allclose(embedding(blend(one, other, 1)), embedding(other), rtol=1e-6)


def test_opposite_voices_give_numbers_all_the_same() -> None:
    assert np.isfinite(embedding(blend(cloned(1, -2), cloned(-1, 2), 0.5))).all()


@pytest.mark.parametrize("weight", [-0.1, 1.1, float("nan")])
def test_weights_have_a_range(weight: float) -> None:
    with pytest.raises(InvalidRequest, match="weight must be 0 to 1"):
        blend(cloned(1), cloned(2), weight)


def test_voices_of_two_models_do_not_blend() -> None:
    with pytest.raises(InvalidRequest, match="voices of 1 and 2 numbers"):
        blend(cloned(1), cloned(1, 2), 0.5)
