"""The count of endings: a sentence that a guard cut is found and printed."""

from __future__ import annotations

import msgspec
import pytest

from benchmarks.voice_endings import SETTINGS, report, speak_all
from engine.api import FinishReason, VoiceInfo
from tests.fakes.engine import FakeSpeechEngine
from tests.fakes.engine_script import FAKE_INFO, FakeScript
from training.text import TextSettings, TextSource

VOICES = tuple(VoiceInfo(name, ("en",), name) for name in ("clara", "edwin"))
INFO = msgspec.structs.replace(FAKE_INFO, voices=VOICES, languages=("english",))


@pytest.mark.virtual_time
async def test_sentence_cut_by_a_guard_is_counted_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    engine = FakeSpeechEngine(info=INFO)
    await engine.start()
    engine.script_next(FakeScript(end_at_frame=3, end_reason=FinishReason.LOOP))
    texts = TextSource(TextSettings(40_000))
    endings = await speak_all(engine, texts, num_sentences=9, batch_size=4)
    await engine.aclose()
    assert {(ending.voice, ending.layout) for ending in endings} == set(SETTINGS)
    assert sorted(ending.number for ending in endings) == list(range(9))
    assert report(endings, 1.0)["reasons"] == {"loop": 1, "stop": 8}
    assert f"0 clara full: loop after 3 frames: {texts.sentence(0)}\n" in capsys.readouterr().out
