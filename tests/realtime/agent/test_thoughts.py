"""Thoughts of reasoning models are not spoken, however the text is cut."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable

import pytest

from realtime.agent.thought_filter import ThoughtFilter
from tests.realtime.agent.agent_client import spoken, talking
from tests.realtime.agent.stub_backend import ScriptedAnswer, StubBackend

PHRASE = "Sorry, something went wrong. Please try again."


def filtered(pieces: Iterable[str]) -> str:
    thoughts = ThoughtFilter()
    return "".join([*map(thoughts.push, pieces), thoughts.finish()])


TEXTS = {
    "No thought at all.": "No thought at all.",
    "<think>\nHm.\n</think>\n\nHello there.": "Hello there.",
    "One <think>two</think> three.": "One three.",
    "Let me see.<think>hm</think>\n\nIt is five.": "Let me see.\n\nIt is five.",
    "<think>a</think> <think>b</think> c": "c",
    "1 < 2, <thin> and <th": "1 < 2, <thin> and <th",
    "A <<think>b</</think>c": "A <c",
    "Hello. <think>without an end </think": "Hello. ",
    "</think>": "</think>",
    "<think></think>": "",
}


@pytest.mark.parametrize(("text", "expected"), TEXTS.items())
def test_thoughts_are_removed_at_all_cuts(text: str, expected: str) -> None:
    places = range(len(text) + 1)
    for first, second in itertools.combinations_with_replacement(places, 2):
        assert filtered([text[:first], text[first:second], text[second:]]) == expected
    assert filtered(text) == expected, "letter by letter"


def chunks(*deltas: dict[str, str]) -> list[bytes]:
    events = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    return [*(b"data: %s\n\n" % json.dumps(event).encode() for event in events), b"data: [DONE]\n\n"]


def pieces_of(text: str, size: int) -> list[dict[str, str]]:
    return [{"content": text[start : start + size]} for start in range(0, len(text), size)]


async def test_thoughts_are_neither_spoken_nor_remembered(backend: StubBackend) -> None:
    thought = "<think>SECRET plan.</think>\n\nIt is noon."
    field = {"reasoning_content": "SECRET plan.", "reasoning": "SECRET plan."}
    backend.answers += [
        ScriptedAnswer(raw=chunks(*pieces_of(thought, 3)), speed=10),
        ScriptedAnswer(raw=chunks(field, field | {"content": None}, {"content": "It is one."})),
        ScriptedAnswer(),
    ]
    async with talking(backend.url) as client:
        assert spoken(await client.ask("How late is it?")) == "It is noon."
        assert spoken(await client.ask("And now?")) == "It is one."
        await client.ask("Thanks")
        assert "SECRET" not in json.dumps(client.events)
    assert "SECRET" not in json.dumps(backend.chats[-1])


async def test_thought_without_an_answer_is_a_failure(backend: StubBackend) -> None:
    backend.answers.append(ScriptedAnswer(raw=chunks(*pieces_of("<think>SECRET and so on", 5))))
    async with talking(backend.url) as client:
        response = await client.ask("Well?")
        assert (response["status"], spoken(response)) == ("failed", PHRASE)


async def test_endless_thought_is_ended(backend: StubBackend) -> None:
    """While it thinks the wait phrase is spoken."""
    backend.answers.append(ScriptedAnswer(raw=chunks({"content": "<think>"}, *pieces_of("on and on " * 500, 5))))
    limits = {"agent__max_answer_s": 0.5, "agent__wait_phrase_after_s": 0.1}
    async with talking(backend.url, **limits) as client:
        response = await client.ask("Well?")
        assert response["status"] == "failed"
        assert spoken(response) == f"One moment, please.  {PHRASE}"
