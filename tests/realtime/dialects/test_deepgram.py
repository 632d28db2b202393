from __future__ import annotations

import pytest

from realtime.protocol import model
from realtime.protocol.dialects.deepgram import DeepgramDialect, voice_and_language
from tests.realtime.dialects.dialect_harness import REQUEST_ID, DialectHarness, handshake


def aura(**query: str) -> DialectHarness:
    return DialectHarness(DeepgramDialect(handshake(**query)))


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("aura-2-thalia-en", ("thalia", "en")),
        ("aura-asteria-en", ("asteria", "en")),
        ("flux-heather-en", ("heather", "en")),
        ("clara", ("clara", None)),
        ("my-own-voice", ("my-own-voice", None)),
        ("", (None, None)),
    ],
)
def test_models_name_voices(model: str, told: tuple[str | None, str | None]) -> None:
    assert voice_and_language(model) == told


def test_the_first_message_and_the_format() -> None:
    play = aura(model="aura-2-thalia-en", encoding="mulaw")
    assert play.beginning[0]["type"] == "Metadata"
    assert (play.beginning[0]["request_id"], play.beginning[0]["model_name"]) == (REQUEST_ID, "aura-2-thalia-en")
    assert play.dialect.options == model.SpeechOptions(
        voice="thalia", language="en", format=model.RequestedFormat("mulaw", 8_000)
    )
    assert play.dialect.headers() == {"dg-request-id": REQUEST_ID}
