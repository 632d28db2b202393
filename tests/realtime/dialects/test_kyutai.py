"""Kyutai's messages, literally."""

from __future__ import annotations

from array import array

import msgspec
import pytest

from realtime.protocol.dialects import base as on
from realtime.protocol.dialects.kyutai import STEP_BYTES, Kyutai, KyutaiOnce
from realtime.protocol.errors import RemoteProtocolError
from tests.realtime.dialects.play import Play, failed, handshake, word


def play(**query: str) -> Play:
    return Play(Kyutai(handshake(**query)))


def pack(kind: str, **fields: object) -> bytes:
    return msgspec.msgpack.encode({"type": kind, **fields})


def unpacked(told: list) -> list:
    return [msgspec.msgpack.decode(one) if isinstance(one, bytes) else one for one in told]


def test_words_in_pcm_and_times_out():
    wire = play(format="PcmMessagePack", voice="expresso/ex03.wav", seed="7")
    wish = on.Wish("expresso/ex03.wav", format=on.WireFormat("pcm_f32le", 24_000), seed=7, word_times=True)
    assert unpacked(wire.beginning) == [{"type": "Ready"}, on.Open("", wish)]
    assert wire.say(pack("Text", text="Hello")) == [on.Append("", "Hello ")]
    assert wire.say(pack("Text", text="there. ")) == [on.Append("", "there. ")]
    assert wire.say(pack("Text", text="")) == []
    assert wire.say(pack("Voice", embeddings=[0.5], shape=[1])) == []
    step = array("f", [0.5] * 1_920).tobytes()
    told = unpacked(wire.audio("", step + step[:400]))
    assert [(one["type"], len(one["pcm"]), one["pcm"][0]) for one in told] == [("Audio", 1_920, 0.5)]
    assert unpacked(wire.tell(on.Words("", (word("Hello", 80, 400),)))) == [
        {"type": "Text", "text": "Hello", "start_s": 0.08, "stop_s": 0.4}
    ]
    assert wire.say(pack("Eos")) == [on.End("")]
    assert wire.say(pack("Text", text="late")) == []
    last, close = unpacked(wire.tell(on.Ended("")))
    assert (last["pcm"][:100], last["pcm"][100:], close) == ([0.5] * 100, [0.0] * 1_820, on.Close())


def test_bare_pcm_and_ogg():
    wire = play(format="Pcm")
    assert wire.beginning == [on.Open("", on.Wish(format=on.WireFormat("pcm_f32le", 24_000)))]
    assert wire.audio("", bytes(STEP_BYTES + 4)) == [bytes(STEP_BYTES)]
    assert wire.say("some words") == [on.Append("", "some words ")]
    assert wire.say(b"\0") == [on.End("")]
    assert play().beginning[0].wish.format == on.WireFormat("ogg_opus", 24_000)
    assert play(format="OggOpus").audio("", b"OggS") == [b"OggS"]
    assert unpacked(play(format="OggOpusMessagePack").audio("", b"OggS")) == [{"type": "OggOpus", "data": b"OggS"}]


def test_errors():
    wire = play(format="PcmMessagePack")
    assert unpacked(wire.tell(failed("", "overloaded"))) == [
        {"type": "Error", "message": "no free channels"},
        on.Close(),
    ]
    assert unpacked(wire.tell(failed("", "engine_error")))[0]["message"] == "what happened"
    assert play(format="Pcm").tell(failed("", "overloaded")) == [on.Close()]
    with pytest.raises(RemoteProtocolError, match="format"):
        play(format="Mp3")
    with pytest.raises(RemoteProtocolError, match="seed"):
        play(seed="x")


@pytest.mark.parametrize(
    "message", [b"\xc1", b"", pack("Song"), msgspec.msgpack.encode(3), pack("Text", text=3), b"\x81"]
)
def test_bad_messages(message):
    with pytest.raises(RemoteProtocolError):
        play().say(message)


def test_once():
    once = Play(KyutaiOnce(handshake()))
    wish = on.Wish(voice="a", format=on.WireFormat("wav", 24_000))
    assert once.say(text="Hello.", voice=["a", "b"]) == [on.Open("", wish), on.Append("", "Hello.", last=True)]
    assert once.audio("", b"RIFF") == [b"RIFF"]
    assert once.tell(on.Ended("")) == [on.Close()]
    with pytest.raises(RemoteProtocolError, match="empty"):
        once.say(text=" ")
