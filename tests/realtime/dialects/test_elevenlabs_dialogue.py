from __future__ import annotations

import json

import pytest

from realtime.protocol.dialects import base as on
from realtime.protocol.dialects.elevenlabs_dialogue import Dialogue
from realtime.protocol.errors import RemoteProtocolError
from tests.realtime.dialects.play import Play, failed, handshake, word


def dialogue(**query: str) -> Play:
    return Play(Dialogue(handshake(**{"output_format": "pcm_24000"} | query)))


def opened(play: Play, context: str = "c1") -> Play:
    play.say(context_id=context, voices=["zoe"])
    return play


def test_a_turn() -> None:
    play = dialogue(model_id="eleven_v3")
    begin, _ = play.say(context_id="c1", voices=["zoe", "max"], voice_settings={"stability": 0.5})
    assert (begin.context, begin.wish.voice) == ("c1", "zoe")
    assert play.say(context_id="c1", inputs=[{"text": "Hello.", "voice_id": "zoe"}]) == [on.Append("c1", "Hello.")]
    assert play.say(context_id="c1", inputs=[{"text": "You there?", "voice_id": "zoe", "new_turn": False}]) == [
        on.Append("c1", " You there?")
    ]
    assert play.say(context_id="c1", flush=True) == [on.Append("c1", ""), on.Flush("c1")]
    assert play.say(context_id="c1", close_context=True) == [on.End("c1")]
    assert play.audio("c1") == [{"audio": "AAA=", "alignment": None, "context_id": "c1"}]
    assert play.tell(on.Flushed("c1", 80.0)) == [{"is_final_audio_for_turn": True, "context_id": "c1"}]
    assert play.tell(on.Ended("c1")) == [{"is_final": True, "context_id": "c1"}]


@pytest.mark.parametrize(
    ("last", "intent"),
    [
        ({"inputs": [{"text": "", "voice_id": "zoe"}], "flush": True}, on.End("c1")),
        ({"inputs": [{"text": "Hello. "}], "flush": True}, on.Cancel("c1")),
        ({"keep_alive": True}, on.Cancel("c1")),
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
    assert play.say(context_id="c1", keep_alive=True) == [on.Append("c1", "")]


def test_the_times_of_messages_add_up_to_their_audio() -> None:
    """As pipecat adds them, which strips the spaces before the first word, and as LiveKit does, by the audio."""
    play = opened(dialogue(sync_alignment="true"))
    clock_ms, seen = 0.0, []
    for at in range(8):
        if at == 5:
            play.tell(on.Words("c1", (word("Hi", 120, 200), word("you", 240, 300))))
        (told,) = play.audio("c1", start_ms=80.0 * at, end_ms=80.0 * (at + 1))
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
    play.audio("c1")
    play.tell(on.Words("c1", (word("Hi", 0, 60),)))
    times, _ = play.tell(on.Ended("c1"))
    assert times["audio"] is None
    assert times["alignment"]["chars"] == ["H", "i", " "]
    assert times["alignment"]["char_start_times_ms"] == [-80, -50, -20]


def test_failures_and_ends() -> None:
    play = opened(opened(dialogue()), "c2")
    error, end = play.tell(failed("c1", "limit_exceeded"))
    assert (error["error"], error["context_id"], end["is_final"]) == ("too_many_concurrent_requests", "c1", True)
    assert play.say(close_socket=True) == [on.End("c2"), on.Finish()]
    assert play.tell(on.Silent()) == [on.Close(1000)]
    assert opened(dialogue()).tell(on.Idle("c1")) == [on.End("c1")]
    assert dialogue().fail("malformed_json", 1007)[0] == {
        "message": "what happened",
        "error": "malformed_json",
        "code": 1008,
        "param": None,
    }


@pytest.mark.parametrize("message", ["", "[]", '{"inputs": "Hello"}', '{"voices": [1, {}]}'])
def test_messages_that_break_the_wire(message: str) -> None:
    with pytest.raises(RemoteProtocolError):
        dialogue().say(message)


def test_text_after_the_close_is_passed_over() -> None:
    play = opened(dialogue())
    play.say(context_id="c1", close_context=True)
    assert play.say(json.dumps({"context_id": "c1", "inputs": [{"text": "More."}]})) == []
