"""Inworld's messages, literally."""

from __future__ import annotations

import json

import pytest

from realtime.protocol.dialects import base as on
from realtime.protocol.dialects.inworld import Inworld, InworldStream
from realtime.protocol.errors import RemoteProtocolError
from tests.realtime.dialects.play import Play, failed, handshake, word

CREATE = {
    "voiceId": "Ashley",
    "modelId": "inworld-tts-1",
    "audioConfig": {"audioEncoding": "PCM", "sampleRateHertz": 24_000, "bitrate": 64_000, "speakingRate": 1.0},
    "timestampType": "WORD",
    "autoMode": True,
}
WISH = on.Wish("Ashley", format=on.WireFormat("pcm_s16le", 24_000), word_times=True)
OK = {"code": 0, "message": "", "details": []}


def play(create: dict | None = None) -> Play:
    wire = Play(Inworld(handshake()))
    wire.say(create=create or CREATE, contextId="c")
    return wire


def test_a_turn():
    wire = Play(Inworld(handshake()))
    created, opened = wire.say(create=CREATE, contextId="c")
    assert created == {"result": {"contextId": "c", "status": OK, "contextCreated": {}}}
    assert opened == on.Open("c", WISH)
    assert wire.say(send_text={"text": "Hello. "}, contextId="c") == [on.Append("c", "Hello. ")]
    assert wire.say(send_text={"text": ""}) == []
    assert wire.say(flush_context={}, contextId="c") == [on.Flush("c")]
    assert wire.say(close_context={}, contextId="c") == [on.End("c")]
    assert wire.audio("c", b"\1\2")[0]["result"]["audioChunk"] == {"audioContent": "AQI="}
    assert wire.tell(on.Flushed("c", 80))[0]["result"]["flushCompleted"] == {}
    assert wire.tell(on.Ended("c"))[0]["result"]["contextClosed"] == {}


def test_times_begin_anew_after_a_flush():
    wire = play()
    told = wire.tell(on.Words("c", (word("Hi", 100, 400), word("you.", 500, 900))))
    assert told[0]["result"]["audioChunk"]["timestampInfo"]["wordAlignment"] == {
        "words": ["Hi", "you."],
        "wordStartTimeSeconds": [0.1, 0.5],
        "wordEndTimeSeconds": [0.4, 0.9],
    }
    wire.tell(on.Flushed("c", 1_000))
    info = wire.tell(on.Words("c", (word("So", 1_000, 1_300),)))[0]["result"]["audioChunk"]["timestampInfo"]
    assert (info["wordAlignment"]["wordStartTimeSeconds"], info["wordAlignment"]["wordEndTimeSeconds"]) == (
        [0.1],
        [0.4],
    )


def test_times_of_characters():
    wire = play({**CREATE, "timestampType": "CHARACTER"})
    info = wire.tell(on.Words("c", (word("Hi", 100, 300),)))[0]["result"]["audioChunk"]["timestampInfo"]
    assert info["characterAlignment"] == {
        "characters": ["H", "i", " "],
        "characterStartTimeSeconds": [0.1, 0.2, 0.3],
        "characterEndTimeSeconds": [0.2, 0.3, 0.3],
    }


def test_a_close_is_an_end_after_a_flush_and_an_interruption_within_speech():
    wire = play()
    wire.say(send_text={"text": "Hello. "}, contextId="c")
    wire.audio("c")
    assert wire.say(close_context={}, contextId="c") == [on.Cancel("c")]
    wire = play()
    wire.say(send_text={"text": "Hello. "}, contextId="c")
    assert wire.say(close_context={}, contextId="c") == [on.End("c")]
    assert wire.say(close_context={}, contextId="c") == [on.Cancel("c")]
    assert wire.say(cancel_context={}, contextId="c") == [on.Cancel("c")]


def test_contexts_that_are_not_there():
    wire = Play(Inworld(handshake()))
    for said in ({"send_text": {"text": "x"}}, {"flush_context": {}}, {"close_context": {}}):
        status = wire.say(**said, contextId="gone")[0]["result"]["status"]
        assert (status["code"], status["message"]) == (5, "Context not found")
    assert wire.say(cancel_context={}, contextId="gone") == []
    wire.say(create=CREATE, contextId="c")
    assert wire.say(create=CREATE, contextId="c")[0]["result"]["status"]["code"] == 6
    bad = {"audioConfig": {"audioEncoding": "TAPE"}}
    assert wire.say(create=bad, contextId="d")[0]["result"]["status"]["code"] == 3


def test_errors():
    told = play().tell(failed("c", "overloaded"))
    assert [told[0]["result"]["status"]["code"], told[1]["result"]["contextClosed"]] == [8, {}]
    assert play().fail("unauthorized")[0]["error"]["code"] == 16
    assert Inworld.refuse(failed("c", "internal_error").error, 500)[0]["code"] == 13
    for said in ("{", b"\0", '{"create": 3}', '{"send_text": {"text": 3}}'):
        with pytest.raises(RemoteProtocolError):
            play().say(said)


def test_formats():
    assert play({"audioConfig": {"audioEncoding": "LINEAR16"}}) is not None
    for named, encoding, rate in (("LINEAR16", "wav", 48_000), ("MULAW", "mulaw", 8_000), ("MP3", "mp3", 48_000)):
        opened = Play(Inworld(handshake())).say(create={"audioConfig": {"audioEncoding": named}}, contextId="c")[1]
        assert (opened.wish.format.encoding, opened.wish.format.sample_rate) == (encoding, rate)


def test_a_stream_over_http():
    stream = Play(InworldStream(handshake()))
    assert stream.say(**CREATE, text="Hello.") == [on.Open("", WISH), on.Append("", "Hello.", last=True)]
    assert [json.loads(line) if isinstance(line, str) else line for line in stream.audio("", b"\1\2")] == [
        {"result": {"audioContent": "AQI="}}
    ]
    assert stream.tell(on.Words("", (word("Hello.", 0, 300),)))[0]["result"]["timestampInfo"]["wordAlignment"]
    assert stream.tell(on.Ended("")) == [on.Close()]
    with pytest.raises(RemoteProtocolError, match="empty"):
        stream.say(text="")
