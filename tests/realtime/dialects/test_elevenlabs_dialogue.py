from __future__ import annotations

import json
from typing import Any

import pytest

from realtime.protocol.dialects import base as on
from realtime.protocol.dialects.elevenlabs_dialogue import Dialogue, SingleDialogue
from realtime.protocol.errors import RemoteProtocolError
from tests.realtime.dialects.play import Play, failed, handshake, word

C1 = "0:c1"
"""What the first part of c1 is called on our side."""


def dialogue(**query: str) -> Play:
    return Play(Dialogue(handshake(**{"output_format": "pcm_24000"} | query)))


def single(**query: str) -> Play:
    return Play(SingleDialogue(handshake(**{"output_format": "pcm_24000"} | query)))


def opened(play: Play, context: str = "c1") -> Play:
    play.say(context_id=context, voices=["zoe"])
    return play


def line(voice: str, text: str, **more: Any) -> dict[str, Any]:
    return {"voice_id": voice, "text": text, **more}


def test_a_turn() -> None:
    play = dialogue(model_id="eleven_v3")
    begin, _ = play.say(context_id="c1", voices=["zoe", "max"], voice_settings={"stability": 0.5})
    assert (begin.context, begin.line, begin.wish.voice) == (C1, "c1", "zoe")
    assert play.say(context_id="c1", inputs=[line("zoe", "Hello.")]) == [on.Append(C1, "Hello.")]
    assert play.say(context_id="c1", inputs=[line("zoe", "You there?", new_turn=False)]) == [
        on.Append(C1, " You there?")
    ]
    assert play.say(context_id="c1", flush=True) == [on.Append(C1, ""), on.Flush(C1)]
    assert play.say(context_id="c1", close_context=True) == [on.End(C1)]
    assert play.audio(C1) == [{"audio": "AAA=", "alignment": None, "context_id": "c1"}]
    assert play.tell(on.Flushed(C1, 80.0)) == [{"is_final_audio_for_turn": True, "context_id": "c1"}]
    assert play.tell(on.Ended(C1)) == [{"is_final": True, "context_id": "c1"}]


def test_each_line_is_a_part_of_its_voice() -> None:
    play = dialogue()
    said = play.say(
        context_id="c1",
        voices=["zoe", "max"],
        inputs=[line("zoe", "Hello."), line("max", "Hi!"), line("max", "And you?"), line("zoe", "Well."), line("", "")],
        flush=True,
    )
    parts = [(intent.context, intent.line, intent.wish.voice) for intent in said if isinstance(intent, on.Open)]
    assert parts == [(C1, "c1", "zoe"), ("1:c1", "c1", "max"), ("2:c1", "c1", "zoe")]
    assert [intent for intent in said if not isinstance(intent, on.Open)] == [
        on.Append(C1, "Hello."),
        on.Flush(C1),
        on.End(C1),
        on.Append("1:c1", "Hi!"),
        on.Append("1:c1", " And you?"),
        on.Flush("1:c1"),
        on.End("1:c1"),
        on.Append("2:c1", "Well."),
        on.Append("2:c1", ""),
        on.Flush("2:c1"),
    ]


def two_voices(**query: str) -> Play:
    play = dialogue(**query)
    play.say(context_id="c1", voices=["zoe", "max"], inputs=[line("zoe", "Hello."), line("max", "Hi!")])
    return play


def test_the_parts_are_one_signal_with_one_end() -> None:
    play = two_voices(sync_alignment="true")
    play.say(context_id="c1", flush=True)
    play.say(context_id="c1", close_context=True)
    play.tell(on.Words(C1, (word("Hello.", 0, 60),)))
    (first,) = play.audio(C1)
    assert first["alignment"]["char_start_times_ms"][0] == 0
    assert play.tell(on.Ended(C1)) == []
    play.tell(on.Words("1:c1", (word("Hi!", 30, 60),)))
    (second,) = play.audio("1:c1")
    assert second["alignment"]["char_start_times_ms"][0] == 30, "of this message, which begins where the first ended"
    play.tell(on.Words("1:c1", (word("late", 60, 80),)))
    late, end = play.tell(on.Ended("1:c1"))
    assert late["alignment"]["char_start_times_ms"][0] == -20
    assert end == {"is_final": True, "context_id": "c1"}


def test_a_turn_is_told_over_once() -> None:
    """By a flush, by ``new_turn`` or by the next voice."""
    play = opened(dialogue())
    flushes = [
        play.say(context_id="c1", inputs=[line("zoe", "Hello.", new_turn=True)]),
        play.say(context_id="c1", inputs=[line("zoe", "How are you?", new_turn=True)]),
        play.say(context_id="c1", inputs=[line("zoe", "Well?")], flush=True),
        play.say(context_id="c1", inputs=[line("max", "Fine.", new_turn=True)]),
        play.say(context_id="c1", inputs=[line("zoe", "Good.")]),
    ]
    assert [[intent.context for intent in said if isinstance(intent, on.Flush)] for said in flushes] == [
        [],
        [C1],
        [C1],
        [],
        ["1:c1"],
    ]


def test_a_voice_that_says_nothing_leaves_no_part() -> None:
    play = opened(dialogue())
    said = play.say(context_id="c1", inputs=[line("max", "Hi!")])
    assert [type(intent) for intent in said] == [on.End, on.Open, on.Append]
    assert play.tell(on.Ended(C1)) == []
    assert play.tell(on.Ended("1:c1")) == [{"is_final": True, "context_id": "c1"}]


def test_an_interruption_drops_the_parts_that_wait_first() -> None:
    play = two_voices()
    assert play.say(context_id="c1", close_context=True) == [on.Cancel("1:c1"), on.Cancel(C1)]
    assert play.tell(on.Ended("1:c1", "cancelled")) == []
    assert play.tell(on.Ended(C1, "cancelled")) == [{"is_final": True, "context_id": "c1"}]


def test_a_part_that_fails_ends_the_dialogue() -> None:
    play = two_voices()
    assert play.tell(failed(C1, "engine_dead")) == [on.Cancel("1:c1")]
    assert play.tell(on.Opened("1:c1")) == [on.Cancel("1:c1")], "it had no place before"
    error, end = play.tell(on.Ended("1:c1", "cancelled"))
    assert (error["error"], end) == ("engine_dead", {"is_final": True, "context_id": "c1"})
    (complaint,) = two_voices_closed().say(context_id="c1", inputs=[line("zoe", "More.")])
    assert complaint["error"] == "text_closed"


def two_voices_closed() -> Play:
    play = two_voices()
    play.tell(failed(C1, "engine_dead"))
    return play


@pytest.mark.parametrize(
    ("last", "intent"),
    [
        ({"inputs": [{"text": "", "voice_id": "zoe"}], "flush": True}, on.End(C1)),
        ({"inputs": [{"text": "Hello. "}], "flush": True}, on.Cancel(C1)),
        ({"keep_alive": True}, on.Cancel(C1)),
    ],
)
def test_a_close_ends_what_was_flushed_and_cancels_the_rest(last: dict[str, object], intent: on.Intent) -> None:
    play = opened(dialogue())
    play.say(context_id="c1", **last)
    assert play.say(context_id="c1", close_context=True) == [intent]


def test_signs_of_life() -> None:
    play = dialogue()
    assert play.say(context_id="c1", keep_alive=True) == []
    opened(play)
    assert play.say(context_id="c1", keep_alive=True) == [on.Append(C1, "")]


def test_the_times_of_messages_add_up_to_their_audio() -> None:
    """As pipecat adds them, which strips the spaces before the first word, and as LiveKit does, by the audio."""
    play = opened(dialogue(sync_alignment="true"))
    clock_ms, seen = 0.0, []
    for at in range(8):
        if at == 5:
            play.tell(on.Words(C1, (word("Hi", 120, 200), word("you", 240, 300))))
        (told,) = play.audio(C1, start_ms=80.0 * at, end_ms=80.0 * (at + 1))
        times = told["alignment"]
        for char, start_ms in zip(times["chars"], times["char_start_times_ms"], strict=True):
            if char != " ":
                seen.append((char, clock_ms + start_ms, 80.0 * at + start_ms))
        if at:
            clock_ms += times["char_start_times_ms"][-1] + times["char_durations_ms"][-1]
    assert clock_ms == 640.0
    assert seen == [("H", 120, 120), ("i", 160, 160), ("y", 240, 240), ("o", 260, 260), ("u", 280, 280)]


def test_words_that_came_last_are_told_before_the_end() -> None:
    play = opened(dialogue(sync_alignment="true"))
    play.audio(C1)
    play.tell(on.Words(C1, (word("Hi", 0, 60),)))
    times, _ = play.tell(on.Ended(C1))
    assert times["audio"] is None
    assert times["alignment"]["chars"] == ["H", "i", " "]
    assert times["alignment"]["char_start_times_ms"] == [-80, -50, -20]


def test_failures_and_ends() -> None:
    play = opened(opened(dialogue()), "c2")
    error, end = play.tell(failed(C1, "limit_exceeded"))
    assert (error["error"], error["context_id"], end["is_final"]) == ("too_many_concurrent_requests", "c1", True)
    assert play.say(close_socket=True) == [on.End("1:c2"), on.Finish()]
    assert play.tell(on.Silent()) == [on.Close(1000)]
    assert opened(dialogue()).tell(on.Idle(C1)) == [on.End(C1)]
    assert dialogue().fail("malformed_json", 1007)[0] == {
        "message": "what happened",
        "error": "malformed_json",
        "code": 1008,
    }


@pytest.mark.parametrize("message", ["", "[]", '{"inputs": "Hello"}', '{"voices": [1, {}]}'])
def test_messages_that_break_the_wire(message: str) -> None:
    with pytest.raises(RemoteProtocolError):
        dialogue().say(message)


def test_text_after_the_close_is_complained_of() -> None:
    play = opened(dialogue())
    play.say(context_id="c1", close_context=True)
    (complaint,) = play.say(json.dumps({"context_id": "c1", "inputs": [{"text": "More."}]}))
    assert (complaint["error"], complaint["context_id"]) == ("text_closed", "c1")


def test_what_becomes_of_parts_that_are_over_is_passed_over() -> None:
    play = opened(dialogue())
    play.tell(on.Ended(C1))
    opened(play)
    assert play.tell(on.Ended(C1)) == play.audio(C1) == play.tell(on.Ended("what")) == []


def test_wav_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="WAV"):
        dialogue(output_format="wav_24000")


def test_the_single_socket_speaks_one_dialogue_and_closes() -> None:
    play = single()
    key, begin, text = play.say(xi_api_key="the-key", voices=["zoe", "max"], voice_settings={"stability": 0.5})
    assert (key, begin.wish.voice, text) == (on.Authenticate("the-key"), "zoe", on.Append("0:default", ""))
    play.say(inputs=[line("zoe", "Hello."), line("max", "Hi!")], flush=True)
    assert play.say(keep_alive=True) == [on.Append("1:default", "")]
    assert play.say(close_socket=True) == [on.End("1:default"), on.Finish()]
    assert play.audio("0:default") == [{"audio": "AAA=", "alignment": None}]
    assert play.tell(on.Flushed("0:default", 80.0)) == [{"is_final_audio_for_turn": True}]
    assert play.tell(on.Ended("0:default")) == []
    assert play.tell(on.Ended("1:default")) == [{"is_final": True}, on.Close(1000)]


def test_the_single_socket_that_says_nothing_fails_or_is_left_alone() -> None:
    assert single().say(close_socket=True) == [{"is_final": True}, on.Finish()]
    play = single()
    play.say(voices=["zoe"], inputs=[line("zoe", "Hello."), line("max", "Hi!")])
    play.tell(failed("0:default", "engine_dead"))
    error, end, close = play.tell(on.Ended("1:default", "cancelled"))
    assert (error["error"], end, close) == ("engine_dead", {"is_final": True}, on.Close(1008, "what happened"))
    play = single()
    play.say(voices=["zoe"])
    error, close = play.tell(on.Idle("0:default"))
    assert (error["error"], close.code) == ("input_timeout_exceeded", 1008)
