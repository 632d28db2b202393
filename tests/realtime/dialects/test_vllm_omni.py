"""vLLM-Omni's messages, literally."""

from __future__ import annotations

import base64
import io
import wave

import pytest

from realtime.protocol.dialects import base as on
from realtime.protocol.dialects.vllm_omni import MAX_HELD_CHARS, VllmOmni
from realtime.protocol.errors import RemoteProtocolError
from tests.realtime.dialects.play import Play, failed, handshake, word

STREAMED = {"type": "session.config", "response_format": "pcm", "stream_audio": True}


def play(**config: object) -> Play:
    wire = Play(VllmOmni(handshake()))
    if config:
        assert wire.say(**config) == []
    return wire


def types(told: list) -> list:
    return [one["type"] if isinstance(one, dict) else type(one) for one in told]


def test_a_file_for_each_utterance_is_the_default():
    wire = play()
    config = {"voice": "vivian", "language": "English", "instructions": "calm", "seed": 3}
    assert wire.say(type="session.config", **config) == [on.Configure({"voice": "vivian"})]
    wish = on.Wish("vivian", "English", on.WireFormat("pcm_s16le", 24_000), 3, instruct="calm", at_once=True)
    assert wire.say(type="input.text", text="Hello ") == [on.Open("0", wish)]
    assert wire.say(type="input.text", text="there.") == []
    assert wire.say(type="input.done") == [on.Append("0", "Hello there.", last=True)]
    assert wire.audio("0", b"\1\0" * 100) == []
    start, file, done, end = wire.tell(on.Ended("0"))
    assert start == {
        "type": "audio.start",
        "utterance_index": 0,
        "sentence_index": 0,
        "sentence_text": "Hello there.",
        "format": "wav",
        "sample_rate": 24_000,
    }
    with wave.open(io.BytesIO(file)) as read:
        assert (read.getnframes(), read.getframerate(), read.readframes(100)) == (100, 24_000, b"\1\0" * 100)
    assert (done["type"], done["total_bytes"], done["error"]) == ("audio.done", 200, False)
    assert end == {"type": "session.done", "utterance_index": 0, "total_sentences": 1}
    assert wire.say(type="input.text", text="More.") == [on.Open("1", wish)]


def test_audio_streamed_while_the_text_is_written():
    wire = play(**STREAMED, split_granularity="sentence")
    assert types(wire.say(type="input.text", text="Hel")) == [on.Open, on.Append]
    assert wire.say(type="input.text", text="lo.") == [on.Append("0", "lo.")]
    start, data = wire.audio("0", b"\1\2")
    assert (start["type"], start["format"], data) == ("audio.start", "pcm", b"\1\2")
    assert wire.audio("0", b"\3\4") == [b"\3\4"]
    assert wire.say(type="input.done") == [on.End("0")]
    assert types(wire.tell(on.Ended("0"))) == ["audio.done", "session.done"]


def test_fields_of_the_speech_api_are_configured():
    wire = play()
    fields = {"ref_audio": "data:audio/wav;base64,AAAA", "ref_text": "Hi.", "top_k": 5, "x_vector_only_mode": False}
    said = {"type": "session.config", "speaker": "ann", "temperature": None, "unknown": 1, **fields}
    assert wire.say(**said) == [on.Configure({**fields, "voice": "ann"})]


def test_times_of_words():
    wire = play(**STREAMED, word_timestamps=True)
    wire.say(type="input.text", text="Hello there.")
    wire.say(type="input.done")
    _, chunk = wire.audio("0", b"\1\2", 0, 80)
    assert (chunk["type"], chunk["chunk_id"], chunk["chunk_end_ms"], chunk["timestamps"]) == (
        "audio.chunk",
        0,
        80,
        None,
    )
    assert base64.b64decode(chunk["audio_b64"]) == b"\1\2"
    assert wire.tell(on.Words("0", (word("Hello", 0, 300), word("there.", 300, 700)))) == []
    last, *_ = wire.tell(on.Ended("0", audio_ms=800))
    assert (last["chunk_id"], last["audio_b64"]) == (1, "")
    assert last["timestamps"] == [
        {"word": "Hello", "start_ms": 0, "end_ms": 300},
        {"word": "there.", "start_ms": 300, "end_ms": 700},
    ]


def test_nothing_spoken_and_failures_end_too():
    wire = play()
    assert types(wire.say(type="input.done")) == [on.Open, on.Append]
    assert wire.tell(on.Ended("0")) == [{"type": "session.done", "utterance_index": 0, "total_sentences": 0}]
    wire.say(type="input.text", text="x")
    told = wire.tell(failed("1", "overloaded"))
    assert types(told) == ["error", "session.done"]
    assert wire.say(type="input.text", text="y") == [on.Open("2", wire.dialect._config.wish)]


def test_goodbye_speaks_what_is_there():
    wire = play()
    wire.say(type="input.text", text="x")
    assert wire.say(type="session.close") == [on.Append("0", "x", last=True), on.Finish()]
    assert wire.tell(on.Silent()) == [on.Close()]


@pytest.mark.parametrize(
    ("said", "param"),
    [
        ({"type": "session.config", "response_format": "ogg"}, "response_format"),
        ({"type": "session.config", "stream_audio": True}, "response_format"),
        ({"type": "session.config", "word_timestamps": True}, "word_timestamps"),
        ({"type": "session.config", "speed": "fast"}, "speed"),
        ({"type": "speak"}, "type"),
        ({"text": "x"}, "type"),
        ({"type": "input.text", "text": "x" * (MAX_HELD_CHARS + 1)}, "text"),
    ],
)
def test_bad_messages(said, param):
    wire = play()
    with pytest.raises(RemoteProtocolError) as refused:
        wire.say(**said)
    assert refused.value.param == param
    assert wire.fail("invalid_event") == [{"type": "error", "message": "what happened"}]
    with pytest.raises(RemoteProtocolError):
        wire.say(b"\0")


def test_no_configuration_within_an_utterance():
    wire = play()
    wire.say(type="input.text", text="x")
    with pytest.raises(RemoteProtocolError, match="within"):
        wire.say(**STREAMED)
