from __future__ import annotations

from typing import Any

import pytest

from realtime.protocol.dialects import base as on
from realtime.protocol.dialects.cartesia import Cartesia
from realtime.protocol.errors import RemoteProtocolError
from tests.realtime.dialects.play import Play, failed, handshake, word

RAW = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24_000}
COMMON: dict[str, Any] = {
    "model_id": "sonic-3",
    "context_id": "c1",
    "output_format": RAW,
    "voice": {"mode": "id", "id": "f786b574-daa5-4673-aa0c-cbe3e8534c02"},
    "language": "en",
}


def cartesia() -> Play:
    return Play(Cartesia(handshake(cartesia_version="2026-03-01")))


def ask(play: Play, transcript: str = "Hello. ", **fields: Any) -> list[Any]:
    return play.say(**COMMON | {"transcript": transcript} | fields)


def test_a_text_in_pieces() -> None:
    play = cartesia()
    begin, text = ask(play, "Hello, ", **{"continue": True, "add_timestamps": True, "max_buffer_delay_ms": 0})
    assert begin.wish.voice == COMMON["voice"]["id"]
    assert (begin.wish.language, begin.wish.word_times) == ("en", True)
    assert begin.wish.format == on.WireFormat("pcm_s16le", 24_000)
    assert text == on.Append("c1", "Hello, ")
    assert ask(play, "there.", **{"continue": True}) == [on.Append("c1", "there.")]
    assert ask(play, "", **{"continue": False}) == [on.Append("c1", "", last=True)]
    running = {"context_id": "c1", "done": False, "status_code": 206}
    assert play.audio("c1") == [{"type": "chunk", "data": "AAA=", "step_time": 0.0, "flush_id": 1, **running}]
    assert play.tell(on.Words("c1", (word("Hello,", 0, 400), word("there.", 400, 812)))) == [
        {
            "type": "timestamps",
            "word_timestamps": {"words": ["Hello,", "there."], "start": [0.0, 0.4], "end": [0.4, 0.812]},
            **running,
        }
    ]
    assert play.tell(on.Ended("c1")) == [{"type": "done", "context_id": "c1", "done": True, "status_code": 200}]


def test_sentences_without_a_space_between_them_get_one() -> None:
    """As pipecat sends them."""
    play = cartesia()
    ask(play, "How are you?", **{"continue": True})
    assert ask(play, "It is nice.", **{"continue": True}) == [on.Append("c1", " It is nice.")]


def test_one_request_is_a_whole_text() -> None:
    assert ask(cartesia(), "Hello.")[1] == on.Append("c1", "Hello.", last=True)


def test_flushes_are_numbered() -> None:
    play = cartesia()
    assert ask(play, **{"continue": True, "flush": True})[1:] == [on.Append("c1", "Hello. "), on.Flush("c1")]
    assert ask(play, flush=True) == [on.Append("c1", "Hello. "), on.Flush("c1"), on.End("c1")]
    numbers = [play.tell(on.Flushed("c1", 100.0))[0]["flush_id"] for _ in range(2)]
    assert numbers == [1, 2]


def test_a_cancel_is_the_last_that_is_heard_of_a_context() -> None:
    """Their package takes a late ``done`` for that of another context."""
    play = cartesia()
    ask(play, **{"continue": True})
    assert play.say(context_id="c1", cancel=True) == [on.Cancel("c1")]
    assert play.tell(on.Ended("c1", "cancelled")) == []
    assert play.say(context_id="c1", cancel=True) == []
    assert isinstance(ask(play)[0], on.Open)


def test_a_context_used_after_its_end() -> None:
    play = cartesia()
    ask(play)
    (error,) = ask(play)
    assert (error["type"], error["error_code"], error["status_code"], error["done"]) == (
        "error",
        "text_closed",
        409,
        False,
    )


def test_without_an_id_each_request_is_a_context() -> None:
    play = cartesia()
    first, second = (ask(play, context_id=None)[0].context for _ in range(2))
    assert first != second


@pytest.mark.parametrize(
    ("voice", "found"),
    [({"mode": "id", "id": "v"}, "v"), ({"id": "v"}, "v"), ("v", "v"), ({"mode": "embedding", "embedding": [1]}, None)],
)
def test_how_voices_are_named(voice: object, found: str | None) -> None:
    assert ask(cartesia(), voice=voice)[0].wish.voice == found


@pytest.mark.parametrize(
    ("changes", "param"),
    [({"container": "wav"}, "container"), ({"encoding": "opus"}, "encoding"), ({"container": "mp3"}, "container")],
)
def test_formats_that_the_socket_does_not_carry(changes: dict[str, object], param: str) -> None:
    play = cartesia()
    (error,) = ask(play, output_format=RAW | changes)
    assert (error["type"], error["context_id"], error["status_code"], error["done"]) == ("error", "c1", 400, True)
    assert f"output_format.{param} must be one of" in error["message"]


def test_a_failure_ends_its_context() -> None:
    play = cartesia()
    ask(play)
    (error,) = play.tell(failed("c1", "limit_exceeded"))
    assert (error["done"], error["status_code"], error["title"]) == (True, 429, "Too many requests")
    ask(play)
    assert play.tell(failed("c1", "text_timeout"))[0]["type"] == "done"


def test_a_context_that_was_left_alone_ends() -> None:
    play = cartesia()
    ask(play, "", **{"continue": True})
    assert play.tell(on.Idle("c1")) == [on.End("c1")]
    assert play.tell(on.Idle("c1")) == []
    assert play.tell(on.Ended("c1"))[0]["type"] == "done"


def test_a_broken_message_costs_no_connection() -> None:
    play = cartesia()
    assert play.dialect.forgiving
    (error,) = play.fail("malformed_json")
    assert (error["type"], error["context_id"], error["status_code"]) == ("error", None, 400)


@pytest.mark.parametrize("message", ["", "[]", '{"transcript": [1]}', '{"context_id": 7.5, "voice": [1]}', b"\xff"])
def test_messages_that_break_the_wire(message: str | bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        cartesia().say(message)
