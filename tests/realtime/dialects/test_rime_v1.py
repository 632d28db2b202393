"""Rime's WebSocket v1, literally: the bytes are those that the vendor's own schema gives."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime.protocol.dialects import base as on
from realtime.protocol.dialects.protobuf import Field, decode, encode
from realtime.protocol.dialects.rime_envelope import BINARY, JSON, RESPONSE
from realtime.protocol.dialects.rime_v1 import RimeV1
from realtime.protocol.errors import RemoteProtocolError
from tests.realtime.dialects.play import REQUEST_ID, Play, failed, word

START = bytes.fromhex("0a01631a261202656e1a046c756e612a140a09617564696f2f70636d10c0bb011d0000c03f300352020801")
START_JSON = (
    '{"contextId": "c", "start": {"language": "en", "speaker": "luna", "audioParameters": {"audioFormat": "audio/pcm", '
    '"samplingRate": 24000, "timeScaleFactor": 1.5}, "splitStrategy": "SPLIT_STRATEGY_ACCUMULATE_SENTENCE", '
    '"timestamps": {"enable": true}}}'
)
TEXT, END, CANCEL = (bytes.fromhex(digits) for digits in ("0a0163220548c3a92e20", "0a01632a00", "0a01633200"))
CONFIG = bytes.fromhex("120b0a094170692d4b6579206b")
WISH = on.Wish("luna", "en", on.WireFormat("pcm_s16le", 24_000), speed=1 / 1.5, word_times=True)


def play(subprotocol: str = BINARY, **headers: str) -> Play:
    return Play(RimeV1(on.Handshake({}, {}, headers, REQUEST_ID, (subprotocol,))))


def told(messages: list[Any]) -> list[Any]:
    return [decode(one, RESPONSE) if isinstance(one, bytes) else one for one in messages]


def test_ready_comes_first():
    assert play().beginning == [bytes.fromhex("120a08011202656e1a02656e")]
    assert play(JSON).beginning == [{"ready": {"protocol": 1, "languages": ["en"], "defaultLanguage": "en"}}]


@pytest.mark.parametrize(("subprotocol", "start"), [(BINARY, START), (JSON, START_JSON)])
def test_a_turn(subprotocol, start):
    wire = play(subprotocol)
    started, opened = wire.say(start)
    assert opened == on.Open("c", WISH)
    assert told([started])[0].get("started") in ({"request_id": f"{REQUEST_ID}-1"}, {"requestId": f"{REQUEST_ID}-1"})
    if subprotocol == JSON:
        assert wire.say('{"contextId": "c", "text": "Hé. "}') == [on.Append("c", "Hé. ")]
        assert wire.say('{"context_id": "c", "end": {}}') == [on.End("c")]
        assert wire.audio("c", b"\1\2") == [{"contextId": "c", "audio": "AQI="}]
        return
    assert wire.say(TEXT) == [on.Append("c", "Hé. ")]
    assert wire.say(END) == [on.End("c")]
    assert wire.audio("c", b"\1\2") == [bytes.fromhex("0a016322020102")]


def test_times_come_with_the_end():
    wire, plain = play(), play(JSON)
    for one, start in ((wire, START), (plain, START_JSON)):
        one.say(start)
        assert one.tell(on.Words("c", (word("Hello", 80, 1_250),))) == []
    assert told(wire.tell(on.Ended("c"))) == [
        {
            "context_id": "c",
            "done": {
                "timestamps": {
                    "status": {"code": 0},
                    "spans": [
                        {
                            "text": "Hello",
                            "start": {"seconds": 0, "nanos": 80_000_000},
                            "end": {"seconds": 1, "nanos": 250_000_000},
                        }
                    ],
                }
            },
        }
    ]
    spans = plain.tell(on.Ended("c"))[0]["done"]["timestamps"]["spans"]
    assert spans == [{"text": "Hello", "start": "0.080000000s", "end": "1.250000000s"}]


def test_text_at_once():
    wire = play(JSON)
    said = wire.say(start={"text": "All of it."}, contextId="c")
    assert said[2] == on.Append("c", "All of it.", last=True)
    error = wire.say(contextId="c", text="more")[0]
    assert error["error"]["kind"] == "invalid_input"


def test_sentences_are_kept_apart_and_tokens_are_not():
    wire = play(JSON)
    wire.say(start={}, contextId="c")
    assert [wire.say(contextId="c", text=text)[0].text for text in ("One.", "Two. ", "Three.")] == [
        "One.",
        " Two. ",
        "Three.",
    ]
    wire.say(START_JSON.replace('"c"', '"d"'))
    assert [wire.say(contextId="d", text=text)[0].text for text in ("To", "ken")] == ["To", "ken"]


def test_a_cancel_is_answered_always():
    wire = play()
    assert wire.say(CANCEL) == [bytes.fromhex("0a01633200")]
    wire.say(START)
    assert wire.say(CANCEL) == [on.Cancel("c")]
    assert wire.tell(on.Ended("c", "cancelled")) == [bytes.fromhex("0a01633200")]
    assert wire.say(START)[1] == on.Open("c", WISH)


def test_a_key_in_the_first_message_and_defaults():
    assert play().say(CONFIG) == [on.Authenticate("k")]
    with pytest.raises(RemoteProtocolError, match="already"):
        play(authorization="Bearer k").say(CONFIG)
    wire = play(JSON)
    assert wire.say(config={"defaults": {"speaker": "luna", "text": "no"}}) == []
    assert wire.say(start={"language": "en"}, contextId="c")[1].wish.voice == "luna"
    with pytest.raises(RemoteProtocolError, match="after"):
        wire.say(config={})


def test_failures():
    wire = play()
    wire.say(START)
    assert wire.tell(failed("c", "overloaded")) == [
        bytes.fromhex("0a01633a1c0a0b756e617661696c61626c65120d776861742068617070656e6564")
    ]
    assert told(wire.fail("unauthorized"))[0] == {"error": {"kind": "unauthenticated", "message": "what happened"}}
    with pytest.raises(RemoteProtocolError, match="sub-protocol"):
        play("rime.v9")
    wire = play(JSON)
    wire.say(start={}, contextId="c")
    with pytest.raises(RemoteProtocolError, match="open"):
        wire.say(start={}, contextId="c")
    error = wire.say(start={"audioParameters": {"audioFormat": "audio/tape"}}, contextId="d")[0]["error"]
    assert error["kind"] == "invalid_input"


@pytest.mark.parametrize(
    "message", [b"\x0a", b"\x0a\x05c", b"\x08\xff", b"\x0f\x01", b"\x0a\x01\xff", b"\x1a\x02\x12\xff", "text"]
)
def test_what_cannot_be_read_ends_the_connection(message):
    error, close = play().say(message)
    assert told([error])[0]["error"]["kind"] == "invalid_input"
    assert close == on.Close(1007, "invalid_input")


@pytest.mark.parametrize("message", ["{", "3", '{"start": 3}', '{"text": 3}', '{"contextId": {}}', b"\0"])
def test_what_is_no_envelope_in_json_neither(message):
    assert play(JSON).say(message)[-1] == on.Close(1007, "invalid_input")


def test_an_empty_message_says_nothing():
    with pytest.raises(RemoteProtocolError, match="holds"):
        play().say(b"")


INNER = {"flag": Field(1, "bool"), "ratio": Field(15, "float"), "name": Field(16, "string")}
OUTER = {
    "number": Field(2, "int"),
    "data": Field(3, "bytes"),
    "inner": Field(500, INNER),
    "many": Field(5, INNER, repeated=True),
}
INNERS = st.fixed_dictionaries(
    {"flag": st.booleans(), "ratio": st.floats(width=32, allow_nan=False), "name": st.text()}
)


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


def test_json_is_read_under_either_spelling():
    for name in ("audioParameters", "audio_parameters"):
        said = msgspec.json.encode({"contextId": "c", "start": {name: {"audioFormat": "audio/mpeg; rate=1"}}}).decode()
        assert play(JSON).say(said)[1].wish.format.encoding == "mp3"
