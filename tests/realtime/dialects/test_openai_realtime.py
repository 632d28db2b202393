"""OpenAI Realtime's messages, literally."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime.protocol.dialects import base as on
from realtime.protocol.dialects.openai_conversation import MAX_CHARS, MAX_ITEMS, MAX_PARTS, MAX_TOTAL_PARTS
from realtime.protocol.dialects.openai_realtime import OpenAIRealtime
from realtime.protocol.errors import RemoteProtocolError
from tests.realtime.dialects.play import Play, failed, handshake, word


def play() -> Play:
    return Play(OpenAIRealtime(handshake(model="gpt-realtime")))


def types(told: list) -> list:
    return [one["type"] if isinstance(one, dict) else one for one in told]


def user(text: str, **fields: object) -> dict:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}], **fields}


def begun(wire: Play, text: str = "Hello there.", **response: object) -> tuple[str, list]:
    """A response that speaks; its context and all that was told at its beginning."""
    wire.say(type="conversation.item.create", item=user(text))
    told = wire.say(type="response.create", response=response)
    return next(one for one in told if isinstance(one, on.Open)).context, told


def test_a_session_is_told_at_once_and_changed_as_asked():
    wire = play()
    created = wire.beginning[0]
    assert (created["type"], created["session"]["model"]) == ("session.created", "gpt-realtime")
    update = {
        "type": "realtime",
        "audio": {"output": {"voice": "marin", "format": {"type": "audio/pcmu"}}},
        "x": {"y": 1},
    }
    told = wire.say(type="session.update", session=update)[0]
    assert told["type"] == "session.updated"
    assert told["session"]["audio"]["output"] == {"format": {"type": "audio/pcmu"}, "voice": "marin", "speed": 1.0}
    assert told["session"]["audio"]["input"] == created["session"]["audio"]["input"]
    assert told["session"]["x"] == {"y": 1}
    _, told = begun(wire)
    assert next(one for one in told if isinstance(one, on.Open)).wish == on.Wish(
        voice="marin", format=on.WireFormat("mulaw", 8_000), word_times=True
    )


def test_a_speed_without_end_is_cut():
    wire = play()
    wire.say(type="session.update", session={"audio": {"output": {"speed": 10**400}}})
    assert next(one for one in begun(wire)[1] if isinstance(one, on.Open)).wish.speed == 100


def test_an_item_is_kept_and_told():
    wire = play()
    told = wire.say(type="conversation.item.create", item=user("Hi", id="mine"))
    assert types(told) == ["conversation.item.added", "conversation.item.done"]
    assert (told[0]["item"]["id"], told[0]["previous_item_id"]) == ("mine", None)
    assert wire.say(type="conversation.item.create", item=user("Ho"))[0]["previous_item_id"] == "mine"
    first = wire.say(type="conversation.item.create", item=user("Hm"), previous_item_id="root")[0]
    assert first["previous_item_id"] is None
    retrieved = wire.say(type="conversation.item.retrieve", item_id="mine")[0]
    assert retrieved["item"]["content"] == [{"type": "input_text", "text": "Hi"}]
    assert wire.say(type="conversation.item.delete", item_id="mine")[0]["type"] == "conversation.item.deleted"
    with pytest.raises(RemoteProtocolError, match="unknown"):
        wire.say(type="conversation.item.retrieve", item_id="mine")


def test_a_whole_reply():
    wire = play()
    context, told = begun(wire, "Hello there.", metadata={"client_event_id": "c1"})
    assert types(told) == [
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        on.Open(context, on.Wish(voice="default", word_times=True)),
        on.Append(context, "Hello there.", last=True),
    ]
    response = told[0]["response"]
    assert (response["status"], response["metadata"], response["output"]) == (
        "in_progress",
        {"client_event_id": "c1"},
        [],
    )
    sound = wire.audio(context, b"\1\2")[0]
    assert (sound["type"], base64.b64decode(sound["delta"])) == ("response.output_audio.delta", b"\1\2")
    assert (sound["response_id"], sound["item_id"]) == (response["id"], told[1]["item"]["id"])
    spoken = wire.tell(on.Words(context, (word("Hello", 0, 300),)))[0]
    assert (spoken["type"], spoken["delta"]) == ("response.output_audio_transcript.delta", "Hello")
    ended = wire.tell(on.Ended(context, "completed", audio_ms=900))
    assert types(ended) == [
        "response.output_audio_transcript.delta",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
    ]
    assert ended[0]["delta"] == " there."
    assert ended[2]["transcript"] == "Hello there."
    assert (ended[-1]["response"]["status"], ended[-1]["response"]["metadata"]) == (
        "completed",
        {"client_event_id": "c1"},
    )
    assert ended[-1]["response"]["output"][0]["content"] == [{"type": "output_audio", "transcript": "Hello there."}]
    assert len({one["event_id"] for one in (*told[:4], *ended)}) == 11


def test_what_is_spoken_is_what_the_user_said_since_the_last_response_or_the_input():
    wire = play()
    wire.say(type="conversation.item.create", item=user("One."))
    wire.say(type="conversation.item.create", item=user("Two.", role="system"))
    context, told = begun(wire, "Three.")
    assert told[-1] == on.Append(context, "One. Three.", last=True)
    wire.tell(on.Ended(context))
    told = wire.say(type="response.create", response={"input": [user("Four.")]})
    assert told[-1].text == "Four."


def test_one_response_at_a_time_in_the_conversation_and_others_beside_it():
    wire = play()
    begun(wire)
    with pytest.raises(RemoteProtocolError) as refused:
        wire.say(type="response.create")
    assert refused.value.code == "conversation_already_has_active_response"
    told = wire.say(type="response.create", response={"conversation": "none", "input": [user("Aside.")]})
    assert "conversation.item.added" not in types(told)
    assert told[-1].text == "Aside."


def test_content_parts_are_of_type_audio_and_items_of_output_audio():
    wire = play()
    context, told = begun(wire)
    ended = wire.tell(on.Ended(context, "completed", audio_ms=900))
    parts = {one["type"]: one["part"] for one in (*told[:4], *ended) if "part" in one}
    assert parts == {
        "response.content_part.added": {"type": "audio", "transcript": ""},
        "response.content_part.done": {"type": "audio", "transcript": "Hello there."},
    }
    done = next(one for one in ended if one["type"] == "response.output_item.done")
    assert [part["type"] for part in done["item"]["content"]] == ["output_audio"]


@pytest.mark.parametrize(
    "response",
    [
        {},
        {"instructions": "Greet the user."},
        {"instructions": "Greet the user.", "conversation": "none"},
        {"input": []},
        {"input": [user(" ")]},
    ],
)
def test_response_without_text_is_an_error(response):
    wire = play()
    with pytest.raises(RemoteProtocolError) as refused:
        wire.say(type="response.create", response=response)
    assert (refused.value.code, refused.value.param) == ("response_input_empty", "response.input")
    assert ("instructions" in str(refused.value)) == ("instructions" in response)
    assert begun(wire)[1][-1].text == "Hello there."


def test_session_instructions_alone_are_an_error():
    wire = play()
    wire.say(type="session.update", session={"instructions": "You are a pirate."})
    with pytest.raises(RemoteProtocolError, match="instructions") as refused:
        wire.say(type="response.create")
    assert refused.value.code == "response_input_empty"


def test_a_cancel_and_what_was_heard():
    wire = play()
    context, told = begun(wire, "Hello there.")
    assert wire.say(type="response.cancel") == [on.Cancel(context)]
    ended = wire.tell(on.Ended(context, "cancelled", heard="Hello", remaining=" there."))
    assert "response.output_audio_transcript.delta" not in types(ended)
    response = ended[-1]["response"]
    assert (response["status"], response["status_details"]["reason"]) == ("cancelled", "client_cancelled")
    assert response["output"][0]["content"][0]["transcript"] == "Hello"
    assert response["output"][0]["status"] == "incomplete"
    with pytest.raises(RemoteProtocolError) as refused:
        wire.say(type="response.cancel", response_id=told[0]["response"]["id"])
    assert refused.value.code == "response_cancel_not_active"


def test_a_truncation_of_what_was_sent_leaves_what_was_heard():
    wire = play()
    context, told = begun(wire, "Hello there.")
    item_id = told[1]["item"]["id"]
    cut = {"type": "conversation.item.truncate", "item_id": item_id, "content_index": 0, "audio_end_ms": 400}
    told = wire.say(**cut)
    assert told[0] == on.Cancel(context, 400)
    wire.tell(on.Ended(context, "cancelled", heard="Hello", remaining=" there."))
    told = wire.say(**cut)
    assert told[0] == on.Recall(context, 400)
    assert {name: told[1][name] for name in cut if name != "type"} == {
        name: value for name, value in cut.items() if name != "type"
    }
    assert told[1]["type"] == "conversation.item.truncated"
    assert wire.tell(on.Recalled(context, "Hel", "lo there.", 300)) == []
    item = wire.say(type="conversation.item.retrieve", item_id=item_id)[0]["item"]
    assert item["content"][0]["transcript"] == "Hel"


def test_text_token_by_token():
    wire = play()
    told = wire.say(type="input_text_buffer.append", delta=" Hel")
    context = told[-1].context
    assert types(told)[0] == "response.created"
    assert told[-1] == on.Append(context, "Hel")
    assert wire.say(type="input_text_buffer.append", delta="lo") == [on.Append(context, "lo")]
    told = wire.say(type="input_text_buffer.commit")
    assert (told[0]["type"], told[1]) == ("input_text_buffer.committed", on.End(context))
    with pytest.raises(RemoteProtocolError, match="whole"):
        wire.say(type="input_text_buffer.append", delta="x")
    assert wire.tell(on.Ended(context))[2]["transcript"] == "Hello"
    with pytest.raises(RemoteProtocolError, match="no text"):
        wire.say(type="input_text_buffer.commit")


def test_audio_of_the_user_is_passed_over():
    wire = play()
    assert wire.say(type="input_audio_buffer.append", audio="AAAA") == []
    assert wire.say(type="input_audio_buffer.commit") == []
    assert types(wire.say(type="input_audio_buffer.clear")) == ["input_audio_buffer.cleared"]


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("{", "malformed_json"),
        (b"\0", "binary_not_accepted"),
        ('{"type": 3}', "invalid_event"),
        ('{"type": "no.such"}', "unknown_event"),
        ('{"type": "conversation.item.create"}', "invalid_event"),
        ('{"type": "session.update", "session": {"output_modalities": ["text"]}}', "invalid_request"),
        (
            '{"type": "session.update", "session": {"audio": {"output": {"format": {"type": "mp3"}}}}}',
            "unsupported_format",
        ),
        (
            '{"type": "session.update", "session": {"audio": {"output": {"format": {"type": []}}}}}',
            "unsupported_format",
        ),
        ('{"type": "session.update", "session": {"output_modalities": 5}}', "invalid_request"),
        ('{"type": "conversation.item.truncate", "item_id": "x"}', "item_not_found"),
        ('{"type": "conversation.item.truncate", "item_id": "x", "audio_end_ms": "nan"}', "invalid_event"),
        ('{"type": "conversation.item.truncate", "item_id": "x", "audio_end_ms": "inf"}', "invalid_event"),
    ],
)
def test_bad_messages_cost_nothing_else(said, code):
    wire = play()
    with pytest.raises(RemoteProtocolError) as refused:
        wire.say(said)
    assert refused.value.code == code
    assert begun(wire)


def test_errors_name_the_clients_event():
    wire = play()
    with pytest.raises(RemoteProtocolError):
        wire.say(type="no.such", event_id="e1")
    error = wire.fail("unknown_event")[0]["error"]
    assert (error["type"], error["code"], error["event_id"]) == ("invalid_request_error", "unknown_event", "e1")
    assert wire.fail("overloaded")[0]["error"]["type"] == "rate_limit_error"
    assert wire.fail("engine_dead")[0]["error"]["type"] == "server_error"


def test_a_response_that_fails_is_told_so():
    wire = play()
    context, _ = begun(wire)
    done = wire.tell(failed(context, "overloaded"))[-1]["response"]
    assert (done["status"], done["status_details"]["error"]["code"]) == ("failed", "overloaded")


def test_item_of_too_many_parts_is_refused():
    wire = play()
    item = user("x", id="mine") | {"content": [{}] * (MAX_PARTS + 1)}
    with pytest.raises(RemoteProtocolError, match=r"item\.content has 257 parts, at most 256"):
        wire.say(type="conversation.item.create", item=item)
    with pytest.raises(RemoteProtocolError, match=r"response\.input\.content has 257 parts, at most 256"):
        wire.say(type="response.create", response={"input": [item]})
    with pytest.raises(RemoteProtocolError, match=r"response\.input has 257 items, at most 256"):
        wire.say(type="response.create", response={"input": [user("x")] * (MAX_ITEMS + 1)})
    assert not wire.dialect._conversation._items


@given(
    sizes=st.lists(st.tuples(st.integers(0, MAX_PARTS), st.sampled_from([0, 1, 900, 250_000])), max_size=40),
    in_type=st.booleans(),
)
def test_items_hold_a_bounded_number_of_parts_and_characters(sizes: list[tuple[int, int]], in_type: bool):
    """Empty parts count, and so do the names of their types."""
    wire = play()
    for num_parts, num_chars in sizes:
        texts = ["x" * (num_chars // num_parts if num_parts else 0)] * num_parts
        content = [{"type": text} if in_type else {"type": "input_text", "text": text} for text in texts]
        wire.say(type="conversation.item.create", item=user("") | {"content": content})
        items = list(wire.dialect._conversation._items.values())
        parts = [part for item in items for part in item["content"]]
        assert len(parts) <= MAX_TOTAL_PARTS
        kept = sum(len(part["text"] or "") + len(part["type"]) for part in parts)
        assert len(items) == 1 or kept <= MAX_CHARS


def test_old_items_are_forgotten():
    wire = play()
    for number in range(MAX_ITEMS + 10):
        wire.say(type="conversation.item.create", item=user("x", id=f"i{number}"))
    assert len(wire.dialect._conversation._items) == MAX_ITEMS
    wire.say(type="conversation.item.create", item=user("y" * MAX_CHARS))
    assert len(wire.dialect._conversation._items) == 1
