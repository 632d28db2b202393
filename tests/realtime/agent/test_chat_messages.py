"""Turns of a conversation as messages of a chat."""

from __future__ import annotations

import pytest

from realtime.agent.backend import base_url
from realtime.agent.language_model import chat_messages, newest_turns
from realtime.protocol.agent_turns import ChatTurn, ToolCall


def call(call_id: str) -> ChatTurn:
    return ChatTurn("assistant", call=ToolCall(call_id, "look_up", "{}"))


def test_roles_alternate():
    turns = [ChatTurn("user", "One."), ChatTurn("user", "Two."), ChatTurn("assistant", "Three.")]
    assert [*chat_messages(turns)] == [
        {"role": "user", "content": "One.\nTwo."},
        {"role": "assistant", "content": "Three."},
    ]


def test_calls_of_one_answer_are_one_message_with_its_results_behind():
    results = [ChatTurn("tool", "1", call_id="a"), ChatTurn("tool", "2", call_id="b")]
    asked, *answered = chat_messages([ChatTurn("assistant", "Wait."), call("a"), call("b"), *results])
    assert (asked["content"], [one["id"] for one in asked["tool_calls"]]) == ("Wait.", ["a", "b"])
    assert [(one["tool_call_id"], one["content"]) for one in answered] == [("a", "1"), ("b", "2")]


def test_call_without_result_and_result_without_call_are_left_out():
    turns = [ChatTurn("user", "Hello."), call("a"), ChatTurn("tool", "2", call_id="b"), ChatTurn("user", "Well?")]
    assert [*chat_messages(turns)] == [{"role": "user", "content": "Hello.\nWell?"}]


def test_newest_turns_fit_and_the_last_is_always_there():
    turns = [ChatTurn("user", "x" * 10), ChatTurn("assistant", "y" * 10), ChatTurn("user", "z" * 10)]
    assert newest_turns(turns, 20) == turns[1:]
    assert newest_turns(turns, 5) == turns[2:]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("http://h:1", "http://h:1/v1"),
        ("http://h:1/", "http://h:1/v1"),
        ("https://h/openai/v1/", "https://h/openai/v1"),
    ],
)
def test_address_without_a_path_is_that_of_v1(given: str, expected: str):
    assert base_url(given) == expected
