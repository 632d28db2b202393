"""Rime's messages on ``/ws3``, literally."""

from __future__ import annotations

import pytest

from realtime.protocol.dialects import base as on
from realtime.protocol.dialects.rime import RimeWs3
from realtime.protocol.errors import RemoteProtocolError
from tests.realtime.dialects.play import Play, failed, handshake, word

PIPECAT = {"speaker": "luna", "modelId": "coda", "audioFormat": "pcm", "samplingRate": "24000"}
LIVEKIT = {**PIPECAT, "segment": "bySentence", "lang": "eng"}
WISH = on.Wish("luna", format=on.WireFormat("pcm_s16le", 24_000), word_times=True)


def play(**query: str) -> Play:
    return Play(RimeWs3(handshake(**(query or PIPECAT))))


def test_a_turn():
    wire = play()
    assert wire.say(text="Hello. ", contextId="c") == [on.Open("0", WISH), on.Append("0", "Hello. ")]
    assert wire.say(text="More. ", contextId="c") == [on.Append("0", "More. ")]
    assert wire.say(operation="flush") == [on.End("0")]
    assert wire.audio("0", b"\1\2") == [{"type": "chunk", "data": "AQI=", "contextId": "c"}]
    assert wire.tell(on.Ended("0")) == [{"type": "done", "contextId": "c"}]
    assert wire.say(text="Again. ", contextId="c")[0] == on.Open("1", WISH)


def times(wire: Play) -> list:
    wire.say(text="Hello there, you. ", contextId="c")
    told = wire.tell(on.Words("0", (word("Hello", 100, 400), word("there,", 450, 800))))
    told += wire.tell(on.Words("0", (word("you.", 900, 1_200),)))
    return [one["word_timestamps"] for one in told]


def test_times_go_on_from_the_last_word_where_the_client_adds_them_up():
    assert times(play()) == [
        {"words": ["Hello", "there,"], "start": [0.1, 0.45], "end": [0.4, 0.8]},
        {"words": ["you."], "start": [0.1], "end": [0.4]},
    ]


def test_times_run_over_the_context_with_a_segment_in_the_address():
    assert times(play(**LIVEKIT))[1] == {"words": ["you."], "start": [0.9], "end": [1.2]}


def test_clear_drops_all_and_each_context_ends():
    wire = play()
    wire.say(text="One. ", contextId="a")
    wire.say(text="Two. ", contextId="b")
    assert wire.say(operation="clear", contextId="b") == [on.Cancel("1")]
    assert wire.say(operation="clear") == [on.Cancel("1"), on.Cancel("0")]
    assert wire.tell(on.Ended("1", "cancelled")) == [{"type": "done", "contextId": "b"}]
    assert wire.say(text="Three. ", contextId="a")[0] == on.Open("2", WISH)


def test_end_of_stream():
    wire = play()
    wire.say(text="One. ")
    assert wire.say(operation="eos") == [on.End("0"), on.Finish()]
    assert wire.tell(on.Silent()) == [on.Close()]


def test_errors():
    wire = play()
    wire.say(text="One. ", contextId="a")
    assert wire.tell(failed("0", "overloaded")) == [
        {"type": "error", "message": "what happened", "contextId": "a"},
        {"type": "done", "contextId": "a"},
    ]
    assert wire.fail("invalid_event") == [{"type": "error", "message": "what happened", "contextId": None}]
    for bad in ({"audioFormat": "tape"}, {"samplingRate": "fast"}):
        with pytest.raises(RemoteProtocolError):
            play(**bad)
    assert play(audioFormat="mulaw").dialect.wish.format == on.WireFormat("mulaw", 8_000)


@pytest.mark.parametrize(
    "said", ["{", b"\0", '{"operation": "dance"}', '{"text": 3}', '{"contextId": "%s"}' % ("x" * 300)]
)
def test_bad_messages(said):
    with pytest.raises(RemoteProtocolError):
        play().say(said)
