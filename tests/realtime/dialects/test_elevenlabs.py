from __future__ import annotations

from typing import Any

import pytest

from realtime.protocol.dialects import base as on
from realtime.protocol.dialects.elevenlabs import MultiStream, StreamInput
from realtime.protocol.dialects.elevenlabs_words import wire_format
from realtime.protocol.errors import RemoteProtocolError
from tests.realtime.dialects.play import Play, failed, handshake, word

VOICE = {"voice_id": "bIHbv24MWmeRgasZH58o"}


def multi(**query: str) -> Play:
    return Play(MultiStream(handshake(VOICE, **query)))


def single(**query: str) -> Play:
    return Play(StreamInput(handshake(VOICE, **query)))


def opened(play: Play, context: str = "c1") -> Play:
    play.say(text=" ", context_id=context)
    return play


def final(context: str) -> dict[str, Any]:
    return {"audio": None, "isFinal": True, "contextId": context, "context_id": context}


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


@pytest.mark.parametrize(
    "query",
    [
        {"output_format": "pcm"},
        {"output_format": "flac_24000"},
        {"output_format": "pcm_24000_32_1"},
        {"seed": "-1"},
        {"seed": str(2**32)},
        {"inactivity_timeout": "soon"},
    ],
)
def test_a_query_that_cannot_be_served_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(RemoteProtocolError):
        multi(**query)


def test_what_pipecat_says_in_a_turn() -> None:
    play = multi(auto_mode="true", output_format="pcm_24000")
    (begin, text) = play.say(text=" ", context_id="c1", voice_settings={"stability": 0.5})
    assert (begin.context, begin.wish.voice, begin.wish.word_times) == ("c1", VOICE["voice_id"], True)
    assert text == on.Append("c1", " ")
    assert play.say(text="Hello there.", context_id="c1") == [on.Append("c1", "Hello there.")]
    assert play.say(text="How are you?", context_id="c1") == [on.Append("c1", " How are you?")]
    assert play.say(context_id="c1", flush=True) == [on.Append("c1", ""), on.Flush("c1")]
    assert play.say(context_id="c1", close_context=True) == [on.End("c1")]
    assert play.audio("c1") == [
        {
            "audio": "AAA=",
            "isFinal": None,
            "alignment": None,
            "normalizedAlignment": None,
            "contextId": "c1",
            "context_id": "c1",
        }
    ]
    assert play.tell(on.Ended("c1")) == [final("c1")]


def test_what_livekit_says_in_a_turn() -> None:
    play = opened(multi(auto_mode="true", sync_alignment="true"))
    assert play.say(text="Hello there. ", context_id="c1", flush=True) == [
        on.Append("c1", "Hello there. "),
        on.Flush("c1"),
    ]
    assert play.say(text="", context_id="c1", flush=True) == [on.Append("c1", ""), on.Flush("c1")]
    assert play.say(context_id="c1", close_context=True) == [on.End("c1")]


def test_a_bare_close_is_an_interruption() -> None:
    play = opened(multi())
    play.say(text="Hello there. ", context_id="c1", flush=True)
    assert play.say(context_id="c1", close_context=True) == [on.Cancel("c1")]
    assert play.tell(on.Ended("c1", "cancelled")) == [final("c1")]


def test_a_second_close_is_an_interruption() -> None:
    play = opened(multi())
    play.say(text="Hello. ", context_id="c1")
    play.say(context_id="c1", flush=True)
    assert play.say(context_id="c1", close_context=True) == [on.End("c1")]
    assert play.say(context_id="c1", close_context=True) == [on.Cancel("c1")]


def test_signs_of_life_open_nothing_and_end_nothing() -> None:
    play = multi()
    assert play.say(text="") == []
    assert play.say(text="", context_id="c1") == []
    opened(play)
    assert play.say(text="", context_id="c1") == [on.Append("c1", "")]
    play.say(context_id="c1", flush=True)
    play.say(text="", context_id="c1")
    assert play.say(context_id="c1", close_context=True) == [on.End("c1")]


def test_text_after_the_close_is_complained_of_and_the_id_is_free_after_the_end() -> None:
    play = opened(multi())
    play.say(context_id="c1", close_context=True)
    (complaint,) = play.say(text="More.", context_id="c1")
    assert (complaint["error"], complaint["contextId"]) == ("text_closed", "c1")
    play.tell(on.Ended("c1", "cancelled"))
    assert [type(intent) for intent in play.say(text="Again. ", context_id="c1")] == [on.Open, on.Append]


def test_without_an_id_there_is_one_context() -> None:
    play = multi()
    play.say(text="Hello. ")
    assert play.tell(on.Ended("default")) == [final("default")]


def test_the_end_of_a_socket() -> None:
    play = opened(opened(multi()), "c2")
    play.say(context_id="c2", close_context=True)
    assert play.say(close_socket=True) == [on.End("c1"), on.Finish()]
    assert play.tell(on.Silent()) == [on.Close(1000)]


def test_times_run_over_the_context_or_begin_anew_with_each_message() -> None:
    words = (word("Hi,", 100, 400), word("you.", 500, 900))
    for query, starts in (({"sync_alignment": "true"}, (100, 500)), ({}, (100, 100))):
        play = opened(multi(**query))
        told = []
        for one in words:
            assert play.tell(on.Words("c1", (one,))) == []
            told.append(play.audio("c1")[0]["alignment"])
        assert told[0]["chars"] == ["H", "i", ",", " "]
        assert (told[0]["charStartTimesMs"][0], told[1]["charStartTimesMs"][0]) == starts
        assert told[0]["charDurationsMs"] == [100, 100, 100, 0]


def test_words_that_came_last_are_told_before_the_end() -> None:
    play = opened(multi())
    play.tell(on.Words("c1", (word("Hi", 0, 100),)))
    times, end = play.tell(on.Ended("c1"))
    assert (times["audio"], times["alignment"]["chars"], end) == (None, ["H", "i", " "], final("c1"))
    opened(play)
    play.tell(on.Words("c1", (word("Hi", 0, 100),)))
    assert [told["alignment"]["chars"] for told in play.tell(on.Flushed("c1", 100.0))] == [["H", "i", " "]]


def test_what_was_said_for_a_number_is_told_beside_it() -> None:
    play = opened(multi(sync_alignment="true"))
    play.tell(on.Words("c1", (word("5", 0, 100, spoken="five"),)))
    (told,) = play.audio("c1")
    assert told["alignment"]["chars"] == ["5", " "]
    assert told["normalizedAlignment"]["chars"] == ["f", "i", "v", "e", " "]


def test_scripts_without_spaces_get_none() -> None:
    play = opened(multi())
    play.tell(on.Words("c1", (word("你", 0, 100), word("好", 100, 200))))
    assert play.audio("c1")[0]["alignment"]["chars"] == ["你", "好"]


def test_a_failure_of_one_context_is_told_and_ends_it() -> None:
    play = opened(multi())
    error, end = play.tell(failed("c1", "overloaded"))
    assert (error["error"], error["code"], error["contextId"], end) == ("system_busy", 1008, "c1", final("c1"))


def test_a_context_that_was_left_alone_ends() -> None:
    play = opened(multi(inactivity_timeout="180"))
    assert play.dialect.context_timeout_s == 180
    assert play.tell(on.Idle("c1")) == [on.End("c1")]
    assert play.tell(on.Idle("c1")) == []
    assert multi().dialect.context_timeout_s == 20
    assert multi(inactivity_timeout="999").dialect.context_timeout_s == 180


@pytest.mark.parametrize("field", ["xi-api-key", "xi_api_key", "authorization", "single_use_token"])
def test_a_key_in_the_first_message(field: str) -> None:
    key, *rest = single().say(**{"text": " ", field: "Bearer the-key" if field == "authorization" else "the-key"})
    assert key == on.Authenticate("the-key")
    assert [type(intent) for intent in rest] == [on.Open, on.Append]


def test_the_single_socket_speaks_one_text_and_closes() -> None:
    play = single()
    play.say(text=" ", try_trigger_generation=True, generation_config={"chunk_length_schedule": [50]})
    assert play.say(text="Hello. ", try_trigger_generation=True) == [on.Append("default", "Hello. ")]
    assert play.say(text="") == [on.End("default")]
    assert play.say(text="") == []
    assert play.say(text="Too late.") == []
    assert "contextId" not in play.audio("default")[0]
    assert play.tell(on.Ended("default")) == [{"audio": None, "isFinal": True}, on.Close(1000)]


def test_the_single_socket_without_any_text() -> None:
    assert [type(intent) for intent in single().say(text="")] == [on.Open, on.End]
    play = single()
    assert play.say(close_socket=True) == [{"audio": None, "isFinal": True}, on.Finish()]
    assert play.tell(on.Silent()) == [on.Close(1000)]


@pytest.mark.parametrize("event", [on.Idle("default"), failed("default", "text_timeout")])
def test_the_single_socket_left_alone(event: on.Event) -> None:
    play = single(inactivity_timeout="30")
    play.say(text="Hello. ")
    error, close = play.tell(event)
    assert error["message"] == "Have not received a new text input within the timeout of 30 seconds."
    assert close == on.Close(1008, error["message"])


def test_the_single_socket_that_fails() -> None:
    play = single()
    play.say(text="Hello. ")
    error, end, close = play.tell(failed("default", "engine_dead"))
    assert (error["error"], end["isFinal"], close) == ("engine_dead", True, on.Close(1008, "what happened"))


def test_a_broken_connection_is_told_so() -> None:
    assert multi().fail("malformed_json", 1007) == [
        {"message": "what happened", "error": "malformed_json", "code": 1008},
        on.Close(1008, "what happened"),
    ]
    assert multi().fail("draining", 1012)[1] == on.Close(1012, "what happened")


@pytest.mark.parametrize("message", ["", "{", "[]", "1", '{"text": 5, "flush": []}', '{"context_id": {}}', b"{}"])
def test_messages_that_break_the_wire(message: str | bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        multi().say(message)


def test_an_id_too_long_to_be_kept() -> None:
    with pytest.raises(RemoteProtocolError, match="context_id has 300 characters, at most 256"):
        multi().say(text=" ", context_id="x" * 300)
