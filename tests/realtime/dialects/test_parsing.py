"""Parse models, formats, subprotocols, sentences and protocol buffers of vendors."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from realtime.errors import RemoteProtocolError
from realtime.protocol import model
from realtime.protocol.dialects.deepgram import DeepgramDialect, voice_and_language
from realtime.protocol.dialects.elevenlabs import ElevenLabsMultiStream
from realtime.protocol.dialects.elevenlabs_common import wire_format
from realtime.protocol.dialects.openai_beta import is_beta
from realtime.protocol.dialects.parsing import with_sentence_space
from realtime.protocol.dialects.protobuf import ProtobufField, decode, encode
from tests.realtime.dialects.dialect_harness import REQUEST_ID, DialectHarness, handshake


@pytest.mark.parametrize(
    ("before", "text", "told"),
    [
        ("How are you?", "It is nice.", " It is nice."),
        ("Stop.", "then go on", " then go on"),
        ('He said "no."', "She left.", " She left."),
        ("Wait…", "What?", " What?"),
        ("How are you? ", "It is nice.", "It is nice."),
        ("How are you?", " It is nice.", " It is nice."),
        ("Hello,", "there.", "there."),
        ("3.", "14", "14"),
        ("example.", "com", "com"),
        ("Wait.", "..", ".."),
        ("Wait.", ". . so", ". . so"),
        ("", "Hello.", "Hello."),
        ("Hello.", "", ""),
        ("」", "次", "次"),
    ],
)
def test_sentences_get_a_space_and_tokens_do_not(before: str, text: str, told: str) -> None:
    assert with_sentence_space(before, text) == told


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


VOICE = {"voice_id": "bIHbv24MWmeRgasZH58o"}


def multi(**query: str) -> DialectHarness:
    return DialectHarness(ElevenLabsMultiStream(handshake(VOICE, **query)))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("mp3_22050_32", ("mp3", 22_050, 32_000)),
        ("mp3_44100_128", ("mp3", 44_100, 128_000)),
        ("pcm_24000", ("pcm_s16le", 24_000, None)),
        ("ulaw_8000", ("mulaw", 8_000, None)),
        ("alaw_8000", ("alaw", 8_000, None)),
        ("opus_48000_64", ("ogg_opus", 48_000, 64_000)),
        ("wav_16000", ("wav", 16_000, None)),
    ],
)
def test_output_formats(name: str, told: tuple[object, ...]) -> None:
    found = wire_format(name)
    assert (found.encoding, found.sample_rate, found.bitrate) == told


def test_context_timeout_is_clamped() -> None:
    assert multi(inactivity_timeout="180").dialect.context_timeout_s == 180
    assert multi(inactivity_timeout="999").dialect.context_timeout_s == 180
    assert multi().dialect.context_timeout_s == 20


def test_browsers_ask_for_it_in_a_sub_protocol() -> None:
    offered = ("realtime", "openai-insecure-api-key.KEY", "openai-beta.realtime-v1")
    assert is_beta(replace(handshake(), subprotocols=offered))
    assert not is_beta(replace(handshake(), subprotocols=offered[:2]))


INNER = {"flag": ProtobufField(1, "bool"), "ratio": ProtobufField(15, "float"), "name": ProtobufField(16, "string")}
OUTER = {
    "number": ProtobufField(2, "int"),
    "data": ProtobufField(3, "bytes"),
    "inner": ProtobufField(500, INNER),
    "many": ProtobufField(5, INNER, repeated=True),
}
INNER_EXAMPLE = {"flag": True, "ratio": 0.5, "name": "x"}
INNERS = st.fixed_dictionaries(
    {"flag": st.booleans(), "ratio": st.floats(width=32, allow_nan=False), "name": st.text()}
)


@example({"number": 128, "data": b"", "inner": INNER_EXAMPLE, "many": [INNER_EXAMPLE]})
@given(
    st.fixed_dictionaries(
        {
            "number": st.integers(-(2**63), 2**63 - 1),
            "data": st.binary(max_size=300),
            "inner": INNERS,
            "many": st.lists(INNERS, min_size=1, max_size=3),
        }
    )
)
def test_protocol_buffers_come_back_as_they_went(message):
    data = encode(message, OUTER)
    assert decode(data, OUTER) == message
    assert decode(data, {}) == {}
    for end in range(len(data)):
        try:
            decode(data[:end], OUTER)
        except RemoteProtocolError:
            continue
