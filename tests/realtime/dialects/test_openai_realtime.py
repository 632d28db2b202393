"""OpenAI Realtime's messages, literally."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime.errors import RemoteProtocolError
from realtime.protocol import model
from realtime.protocol.dialects.openai_conversation import MAX_CHARS, MAX_ITEMS, MAX_PARTS, MAX_TOTAL_PARTS
from realtime.protocol.dialects.openai_realtime import OpenAIRealtimeDialect
from tests.realtime.dialects.dialect_harness import DialectHarness, handshake


def play() -> DialectHarness:
    return DialectHarness(OpenAIRealtimeDialect(handshake(model="gpt-realtime")))


def types(told: list) -> list:
    return [one["type"] if isinstance(one, dict) else one for one in told]


def user(text: str, **fields: object) -> dict:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}], **fields}


def begun(wire: DialectHarness, text: str = "Hello there.", **response: object) -> tuple[str, list]:
    """A response that speaks; its context and all that was told at its beginning."""
    wire.say(type="conversation.item.create", item=user(text))
    told = wire.say(type="response.create", response=response)
    return next(one for one in told if isinstance(one, model.OpenContext)).context, told


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
