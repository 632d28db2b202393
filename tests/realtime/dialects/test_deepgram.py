from __future__ import annotations

from typing import Any

import pytest

from realtime.protocol.dialects import base as on
from realtime.protocol.dialects.deepgram import Speak
from realtime.protocol.dialects.deepgram_flux import Flux
from realtime.protocol.dialects.deepgram_words import voice_and_language
from realtime.protocol.errors import RemoteProtocolError
from tests.realtime.dialects.play import REQUEST_ID, Play, failed, handshake


def aura(**query: str) -> Play:
    return Play(Speak(handshake(**query)))


def flux(**query: str) -> Play:
    return Play(Flux(handshake(**{"model": "flux-heather-en"} | query)))


def speak(play: Play, text: str = "Hello. ") -> list[Any]:
    return play.say(type="Speak", text=text)


def flush(play: Play) -> list[Any]:
    return play.say(type="Flush")


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
    assert play.dialect.wish == on.Wish(voice="thalia", language="en", format=on.WireFormat("mulaw", 8_000))
    assert play.dialect.headers() == {"dg-request-id": REQUEST_ID}


@pytest.mark.parametrize(
    "query", [{"encoding": "mp3"}, {"sample_rate": "fast"}, {"speed": "nan"}, {"speed": "0"}, {"speed": "x"}]
)
def test_a_query_that_cannot_be_served_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(RemoteProtocolError):
        aura(**query)


def test_turns_are_cut_by_flushes_and_answered_in_order() -> None:
    play = aura()
    begin, text = speak(play, "Hello ")
    assert (type(begin), text) == (on.Open, on.Append("0", "Hello "))
    assert speak(play, "there.") == [on.Append("0", "there.")]
    assert flush(play) == [on.End("0")]
    assert speak(play)[1] == on.Append("1", "Hello. ")
    assert flush(play) == [on.End("1")]
    assert [type(intent) for intent in flush(play)] == [on.Open, on.End]
    assert play.audio("0", b"\1\2") == [b"\1\2"]
    answers = [play.tell(on.Ended(context)) for context in "012"]
    assert answers == [[{"type": "Flushed", "sequence_id": number}] for number in range(3)]


def test_a_clear_silences_everything_and_is_answered_at_once() -> None:
    play = aura()
    speak(play)
    flush(play)
    speak(play)
    assert play.say(type="Clear") == [on.Cancel("0"), on.Cancel("1"), {"type": "Cleared", "sequence_id": 0}]
    assert speak(play)[1] == on.Append("2", "Hello. ")
    assert play.tell(on.Ended("0", "cancelled")) == []
    assert play.tell(on.Ended("1", "cancelled")) == []
    flush(play)
    assert play.tell(on.Ended("2")) == [{"type": "Flushed", "sequence_id": 1}]


def test_a_close_speaks_what_is_there() -> None:
    play = aura()
    speak(play)
    assert play.say(type="Close") == [on.End("0"), on.Finish()]
    assert play.tell(on.Ended("0")) == []
    assert play.tell(on.Silent()) == [on.Close(1000)]


def test_a_failure_is_told_and_a_flush_is_still_answered() -> None:
    play = aura()
    speak(play)
    flush(play)
    error, flushed = play.tell(failed("0", "overloaded"))
    assert (error["type"], error["code"], flushed["type"]) == ("Error", "overloaded", "Flushed")
    speak(play)
    assert play.tell(failed("1", "text_timeout")) == []


def test_signs_of_life_and_blank_text_begin_nothing() -> None:
    play = aura()
    assert play.say(type="KeepAlive") == []
    assert speak(play, " ") == []


@pytest.mark.parametrize("play", [aura(), flux()])
@pytest.mark.parametrize("message", ["", "[]", "{}", '{"type": "Shout"}', '{"type": "Speak", "text": [1]}', b"\0"])
def test_messages_that_break_the_wire(play: Play, message: str | bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        play.say(message)


def test_a_broken_connection_is_told_so() -> None:
    error, close = aura().fail("malformed_json", 1007)
    assert (error["type"], error["code"], error["description"]) == ("Error", "malformed_json", "what happened")
    assert close == on.Close(1008, "what happened")
    error, close = flux().fail("message_too_big", 1009)
    assert (error, close) == (
        {"type": "Error", "code": "BIG-0000", "description": "what happened"},
        on.Close(1009, "what happened"),
    )


def started(play: Play) -> str:
    """Begin a turn; its id."""
    message = next(told for told in speak(play) if isinstance(told, dict))
    assert message["type"] == "SpeechStarted"
    return str(message["speech_id"])


def metadata(speech_id: str, audio_ms: int, num_chars: int = 7) -> dict[str, Any]:
    return {
        "speech_id": speech_id,
        "audio_duration_ms": audio_ms,
        "input_character_count": num_chars,
        "billable_character_count": num_chars,
        "controls_applied": {"pronunciations_applied": 0, "breaks_applied": 0, "pronunciation_warnings": 0},
    }


def test_flux_needs_a_model() -> None:
    with pytest.raises(RemoteProtocolError, match="model is missing"):
        Play(Flux(handshake()))


def test_a_flux_turn_lies_between_its_start_and_its_metadata() -> None:
    play = flux()
    assert play.beginning[0]["type"] == "Connected"
    first = started(play)
    assert first.startswith("dg_sp_")
    assert flush(play) == [{"type": "Flushed", "speech_id": first}, on.End("0")]
    assert [type(told) for told in speak(play)] == [on.Open, on.Append]
    play.audio("0", end_ms=900.0)
    end, begin = play.tell(on.Ended("0", audio_ms=900.0))
    assert end == {"type": "SpeechMetadata", **metadata(first, 900)}
    assert begin["type"] == "SpeechStarted"
    assert begin["speech_id"] != first


def test_flux_turns_that_hold_nothing_end_too() -> None:
    play = flux()
    assert flush(play)[0]["code"] == "NO_ACTIVE_SPEECH"
    speech_id = next(told for told in speak(play, "...") if isinstance(told, dict))["speech_id"]
    flush(play)
    warning, end = play.tell(on.Ended("0"))
    assert warning["code"] == "NO_SYNTHESIZABLE_TEXT"
    assert end == {"type": "SpeechMetadata", **metadata(speech_id, 0, 3)}


def interrupt(play: Play, value: float | None = None) -> list[Any]:
    offset = {} if value is None else {"playback_offset": {"type": "time_ms", "value": value}}
    return play.say(type="Interrupt", **offset)


def test_flux_interruptions_count_from_the_beginning_of_the_session() -> None:
    play = flux()
    started(play)
    flush(play)
    play.audio("0", end_ms=1_000.0)
    play.tell(on.Ended("0", audio_ms=1_000.0))
    second = started(play)
    play.audio("1", end_ms=2_000.0)
    assert interrupt(play, 1_500) == [on.Cancel("1", 500.0)]
    assert interrupt(play, 1_600)[0]["code"] == "INTERRUPT_IN_PROGRESS"
    ended = on.Ended("1", "cancelled", audio_ms=2_000.0, heard="Hel", remaining="lo. ", played_ms=500.0)
    assert play.tell(ended) == [
        {
            "type": "SpeechInterrupted",
            "audio_played_ms": 1_500,
            "text_spoken": "Hel",
            "text_remaining": "lo. ",
            "metadata": metadata(second, 2_000),
        }
    ]
    assert interrupt(play)[0]["code"] == "NO_AUDIO_GENERATED"
    started(play)
    play.audio("2", end_ms=100.0)
    assert interrupt(play, 1_400)[0]["code"] == "INVALID_INTERRUPT_OFFSET"
    assert interrupt(play, 1_600) == [on.Cancel("2", 100.0)]


def test_flux_interrupt_beyond_what_was_sent_is_clamped() -> None:
    play = flux()
    speech_id = started(play)
    play.audio("0", end_ms=1_000.0)
    assert interrupt(play, 9_999) == [on.Cancel("0", 1_000.0)]
    (told,) = play.tell(on.Ended("0", "cancelled", audio_ms=1_000.0, heard="Hel", remaining="lo. ", played_ms=1_000.0))
    assert (told["type"], told["audio_played_ms"], told["text_spoken"]) == ("SpeechInterrupted", 1_000, "Hel")
    assert told["metadata"] == metadata(speech_id, 1_000)
    started(play)
    play.audio("1", end_ms=500.0)
    assert interrupt(play, 9_999) == [on.Cancel("1", 500.0)]


def test_flux_interrupt_at_no_number_is_refused() -> None:
    play = flux()
    started(play)
    play.audio("0", end_ms=1_000.0)
    assert play.say(type="Interrupt", playback_offset={"value": "nan"})[0]["code"] == "INVALID_INTERRUPT_OFFSET"
    assert interrupt(play, 500) == [on.Cancel("0", 500.0)]


def test_flux_interrupt_beyond_a_turn_that_was_sent_whole_finds_all_played() -> None:
    play = flux()
    started(play)
    flush(play)
    play.audio("0", end_ms=1_000.0)
    play.tell(on.Ended("0", audio_ms=1_000.0))
    assert interrupt(play, 9_999) == [on.Recall("0", 1_000.0)]
    assert play.tell(on.Recalled("0", "Hello. ", "", 1_000.0))[0]["code"] == "NO_ACTIVE_SPEECH"


def test_flux_interruptions_drop_what_waits() -> None:
    play = flux()
    first = started(play)
    flush(play)
    speak(play)
    flush(play)
    assert interrupt(play) == [on.Cancel("1"), on.Cancel("0", None)]
    assert play.tell(on.Ended("1", "cancelled")) == []
    (told,) = play.tell(on.Ended("0", "cancelled", audio_ms=300.0, played_ms=120.0))
    assert told == {"type": "SpeechInterrupted", "audio_played_ms": 300, "metadata": metadata(first, 300)}


@pytest.mark.parametrize(("remaining", "kind"), [("there.", "SpeechInterrupted"), ("", "Warning")])
def test_flux_interruptions_of_what_was_sent_and_is_still_heard(remaining: str, kind: str) -> None:
    play = flux()
    started(play)
    flush(play)
    play.audio("0", end_ms=1_000.0)
    play.tell(on.Ended("0", audio_ms=1_000.0))
    assert interrupt(play, 400) == [on.Recall("0", 400.0)]
    assert play.tell(on.Recalled("0", "Hello", remaining, 400.0))[0]["type"] == kind


def test_flux_interruptions_after_a_turn_without_sound_are_answered() -> None:
    play = flux()
    speak(play, "...")
    flush(play)
    play.tell(on.Ended("0"))
    assert interrupt(play)[0]["code"] == "NO_AUDIO_GENERATED"
    started(play)
    play.tell(on.Ended("1", audio_ms=1_000.0))
    speak(play, "...")
    flush(play)
    play.tell(on.Ended("2"))
    assert interrupt(play, 400) == [on.Recall("1", 400.0)]


def test_flux_speed_changes_for_the_turns_to_come() -> None:
    play = flux()
    assert play.say(type="Configure", speed=1.2) == [{"type": "ConfigureSuccess", "applied": {"speed": 1.2}}]
    assert speak(play)[0].wish.speed == 1.2
    (failure,) = play.say(type="Configure", speed=3)
    assert (failure["type"], failure["code"], failure["field"]) == ("ConfigureFailure", "SPEED_OUT_OF_RANGE", "speed")


def test_flux_says_goodbye_with_the_sum() -> None:
    play = flux()
    started(play)
    assert play.say(type="Close") == [on.End("0"), on.Finish()]
    play.tell(on.Ended("0", audio_ms=700.0))
    told, close = play.tell(on.Silent())
    assert (told["type"], told["total_audio_duration_ms"], told["total_input_character_count"]) == (
        "SessionMetadata",
        700,
        7,
    )
    assert close == on.Close(1000)


def test_flux_turns_that_cannot_even_wait_are_told() -> None:
    play = flux()
    started(play)
    flush(play)
    speak(play)
    assert [told["type"] for told in play.tell(failed("1", "limit_exceeded"))] == ["Error"]
    assert flush(play)[0]["code"] == "NO_ACTIVE_SPEECH"


def test_flux_failures_end_the_turn() -> None:
    play = flux()
    started(play)
    error, end = play.tell(failed("0", "engine_dead"))
    assert (error["type"], error["code"], end["type"]) == ("Error", "NET-0000", "SpeechMetadata")
