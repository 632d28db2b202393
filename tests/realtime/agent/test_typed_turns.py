"""Typed turns of the built-in agent: the package of OpenAI, a server, and a language model on a socket."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time

import pytest

from realtime.config import ConfigError
from tests.fakes.engine import FakeScript, FakeSpeechEngine
from tests.realtime.agent.agent_client import RATE, AgentClient, agent_client, spoken, talking
from tests.realtime.agent.stub_backend import ScriptedAnswer, StubBackend
from tests.realtime.live_server import live_server, until

PHRASE = "Sorry, something went wrong. Please try again."
CALL = {"id": "call_1", "name": "get_time", "arguments": '{"zone": "UTC"}'}


async def test_answer_is_spoken_as_tokens_arrive(backend: StubBackend) -> None:
    backend.answers.append(ScriptedAnswer("One. Two. Three. Four."))
    async with talking(backend.url) as client:
        response = await client.ask("How are you?")
        assert response["status"] == "completed"
        assert spoken(response) == "One. Two. Three. Four."
        assert client.audio
        latency = response["latency"]
        assert latency["llm_first_token_ms"] <= latency["first_audio_ms"]
        assert latency["stt_ms"] is None
    [chat] = backend.chats
    assert chat["model"] == "small", "the first that the server lists"
    assert chat["stream"] is True
    system, user = chat["messages"]
    assert system["role"] == "system"
    assert user == {"role": "user", "content": "How are you?"}


async def test_ten_turns_remember_each_other(backend: StubBackend) -> None:
    async with talking(backend.url, agent__llm_model="m") as client:
        for number in range(10):
            backend.answers.append(ScriptedAnswer(f"Answer {number}."))
            response = await client.ask(f"Question {number}?")
            assert spoken(response) == f"Answer {number}."
    roles = [message["role"] for message in backend.chats[-1]["messages"]]
    assert roles == ["system", *["user", "assistant"] * 9, "user"]
    assert backend.chats[-1]["messages"][-2]["content"] == "Answer 8."


async def test_agent_is_listed_with_the_model(backend: StubBackend) -> None:
    for flags, ability in (
        ({}, "none"),
        ({"agent__llm_url": backend.url}, "text"),
        ({"agent__llm_url": backend.url, "agent__stt_url": backend.url}, "audio"),
    ):
        async with live_server(**flags) as live, live.http() as http:
            [model] = (await http.get("/v1/models")).json()["data"]
            assert model["agent"] == ability


async def test_function_call_is_passed_through(backend: StubBackend) -> None:
    backend.answers += [ScriptedAnswer("Let me see.", [CALL]), ScriptedAnswer("It is noon.")]
    tool = {"type": "function", "name": "get_time", "parameters": {"type": "object", "properties": {}}}
    async with talking(backend.url) as client:
        session = {"type": "realtime", "tools": [tool], "instructions": "Be brief."}
        await client.connection.session.update(session=session)
        await client.until("session.updated")
        response = await client.ask("What time is it?")
        _, call = response["output"]
        assert spoken(response) == "Let me see."
        assert (call["call_id"], call["name"], json.loads(call["arguments"])) == ("call_1", "get_time", {"zone": "UTC"})
        done = next(event for event in client.events if event["type"] == "response.function_call_arguments.done")
        assert done["arguments"] == CALL["arguments"]
        output = {"type": "function_call_output", "call_id": "call_1", "output": '"12:00"'}
        await client.connection.conversation.item.create(item=output)
        await client.connection.response.create()
        assert spoken((await client.until("response.done"))["response"]) == "It is noon."
    first, second = backend.chats
    assert first["tools"][0]["function"]["name"] == "get_time"
    assert first["messages"][0]["content"] == "Be brief."
    _, _, asked, result = second["messages"]
    assert (asked["content"], asked["tool_calls"][0]["id"]) == ("Let me see.", "call_1")
    assert result == {"role": "tool", "content": '"12:00"', "tool_call_id": "call_1"}


async def test_agent_file_gives_instructions_and_tools(backend: StubBackend, tmp_path, monkeypatch) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(
        'instructions = "You sell tea."\nmax_tokens = 50\n[phrases]\nfailed = "Oh dear."\n[[tools]]\nname = "order"\n'
    )
    monkeypatch.setenv("VOICEWIRE_AGENT_LLM_KEY", "the-key")
    backend.answers += [ScriptedAnswer(), ScriptedAnswer(status=401)]
    async with talking(f"{backend.url}/v1", agent__file=str(file)) as client:
        await client.ask("Hello")
        assert spoken(await client.ask("Hello")) == "Oh dear."
    chat = backend.chats[0]
    assert chat["messages"][0]["content"] == "You sell tea."
    assert chat["max_tokens"] == 50
    assert [tool["function"]["name"] for tool in chat["tools"]] == ["order"]
    assert {headers["authorization"] for headers in backend.headers} == {"Bearer the-key"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("instructions = 1", "instructions"),
        ("instuctions = 'x'", "instuctions"),
        ("[[tools]]\nname = 'a b'", "tools"),
        ("temperature = 3", "temperature"),
        ("x", "Expected"),
    ],
)
async def test_wrong_agent_file_stops_the_start(tmp_path, text: str, message: str) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=rf"agent\.file.*{message}"):
        async with live_server(agent__llm_url="http://127.0.0.1:1", agent__file=str(file)):
            pass


async def test_recognizer_without_model_stops_the_start() -> None:
    with pytest.raises(ConfigError, match=r"agent\.stt_url needs agent\.llm_url"):
        async with live_server(agent__stt_url="http://127.0.0.1:1"):
            pass


@pytest.mark.parametrize(
    "answer",
    [
        ScriptedAnswer(status=400),
        ScriptedAnswer(text="", raw=[b"data: [DONE]\n\n"]),
        ScriptedAnswer(raw=[b"data: {broken\n\n"]),
        ScriptedAnswer(raw=[b'data: {"error": {"message": "SECRET"}}\n\n'] * 2),
        ScriptedAnswer(raw=[b"data: " + b"x" * 100_000] * 4),
        ScriptedAnswer(stalls_at=1),
    ],
    ids=["status", "empty", "no JSON", "error", "endless line", "stall"],
)
async def test_failing_model_is_reported_and_spoken(backend: StubBackend, caplog, answer: ScriptedAnswer) -> None:
    backend.answers += [answer, answer]
    flags = {"agent__first_token_timeout_s": 0.3, "agent__token_timeout_s": 0.3, "agent__retry_pause_s": 0.01}
    async with talking(backend.url, **flags) as client:
        response = await client.ask("SECRET question")
        assert response["status"] == "failed"
        assert response["status_details"]["error"]["code"] == "llm_failed"
        assert spoken(response) == PHRASE
        assert client.audio
        error = next(event["error"] for event in client.events if event["type"] == "error")
        assert (error["code"], error["type"]) == ("llm_failed", "server_error")
        assert "SECRET" not in error["message"]
        backend.answers.clear()
        assert (await client.ask("Again"))["status"] == "completed"
    assert "SECRET" not in caplog.text


async def test_model_out_of_reach_is_reported(caplog) -> None:
    async with talking("http://127.0.0.1:9", agent__llm_model="m") as client:
        response = await client.ask("Hello")
        assert "cannot be reached" in response["status_details"]["error"]["message"]
        assert "agent is not ready" in caplog.text
        assert spoken(response) == PHRASE


async def test_failure_before_the_first_token_is_tried_again(backend: StubBackend) -> None:
    backend.answers += [ScriptedAnswer(status=503), ScriptedAnswer("Now it works.")]
    async with talking(backend.url) as client:
        assert spoken(await client.ask("Hello")) == "Now it works."
    assert len(backend.chats) == 2


async def test_model_that_breaks_off_leaves_no_silence(backend: StubBackend) -> None:
    backend.answers.append(ScriptedAnswer("It is far. And then it", breaks_at=4))
    async with talking(backend.url) as client:
        response = await client.ask("How far?")
        assert response["status"] == "failed"
        assert spoken(response) == f"It is far. {PHRASE}"


async def test_slow_model_is_bridged_by_a_phrase(backend: StubBackend) -> None:
    backend.answers.append(ScriptedAnswer(stalls_at=0))
    flags = {"agent__wait_phrase_after_s": 0.05, "agent__first_token_timeout_s": 0.5}
    async with talking(backend.url, **flags) as client:
        response = await client.ask("Hello")
        assert spoken(response) == f"One moment, please.  {PHRASE}"


async def test_stall_within_an_answer_is_spoken_up_to_there(backend: StubBackend) -> None:
    """Text without an end is spoken before more comes: the rule against dead air."""
    backend.answers.append(ScriptedAnswer("I think that this and", stalls_at=6))
    engine = FakeSpeechEngine(FakeScript(ms_per_char=5.0, first_chunk_s=0.005, real_time_factor=0.02))
    async with talking(backend.url, engine, agent__token_timeout_s=2.0) as client:
        await client.write("Hello")
        await client.until("response.output_audio.delta")
        assert "error" not in client.kinds


async def test_long_answer_is_cut(backend: StubBackend) -> None:
    backend.answers.append(ScriptedAnswer("word " * 60))
    async with talking(backend.url, agent__max_answer_chars=50) as client:
        response = await client.ask("Tell me a story")
        assert response["status"] == "completed"
        assert len(spoken(response)) <= 50


@pytest.mark.parametrize(
    "calls", [[CALL | {"id": f"c{number}"} for number in range(3)], [CALL | {"arguments": "x" * 50}]]
)
async def test_tool_calls_are_bounded(backend: StubBackend, calls: list[dict[str, str]]) -> None:
    backend.answers.append(ScriptedAnswer("", calls))
    flags = {"agent__max_tool_calls": 2, "agent__max_argument_chars": 40}
    async with talking(backend.url, **flags) as client:
        response = await client.ask("Do it")
        assert response["status"] == "failed"
        assert spoken(response) == PHRASE


async def test_old_turns_are_left_out_of_the_prompt(backend: StubBackend) -> None:
    async with talking(backend.url, agent__max_history_chars=60) as client:
        for number in range(4):
            await client.ask(f"Question {number} " + "x" * 20)
    texts = [message["content"] for message in backend.chats[-1]["messages"][1:]]
    assert texts[-1].startswith("Question 3")
    assert sum(map(len, texts)) <= 60


async def test_audio_without_recognizer_is_refused_once(backend: StubBackend) -> None:
    async with talking(backend.url) as client:
        await client.speak(bytes(48_000))
        error = (await client.until("error"))["error"]
        assert "--stt" in error["message"]
        assert error["param"] == "audio"
        assert (await client.ask("Hello"))["status"] == "completed"
        assert client.kinds.count("error") == 1


async def test_items_with_audio_are_refused(backend: StubBackend) -> None:
    async with talking(backend.url) as client:
        content = [{"type": "input_audio", "audio": "AAAA"}]
        await client.connection.conversation.item.create(item={"type": "message", "role": "user", "content": content})
        assert (await client.until("error"))["error"]["param"] == "item.content"


async def test_cancelled_answer_leaves_what_was_heard(backend: StubBackend) -> None:
    """An answer that is cancelled before its first token ends as well."""
    backend.answers += [ScriptedAnswer(stalls_at=0), ScriptedAnswer("Well.")]
    async with talking(backend.url) as client:
        await client.write("Hello")
        await client.until("response.created")
        await until(lambda: len(backend.chats) == 1)
        await client.connection.response.cancel()
        response = (await client.until("response.done"))["response"]
        assert (response["status"], response["output"]) == ("cancelled", [])
        assert spoken(await client.ask("And now?")) == "Well."
    assert [message["content"] for message in backend.chats[1]["messages"][1:]] == ["Hello\nAnd now?"]


async def test_response_may_follow_a_cancel_at_once(backend: StubBackend) -> None:
    backend.answers += [ScriptedAnswer("A long story. " * 10), ScriptedAnswer("Short.")]
    engine = FakeSpeechEngine(FakeScript(real_time_factor=0.5))
    async with talking(backend.url, engine) as client:
        await client.write("Tell me")
        await client.until("response.output_audio.delta")
        await client.connection.response.cancel()
        await client.write("Stop. Be short.")
        assert (await client.until("response.done"))["response"]["status"] == "cancelled"
        assert spoken((await client.until("response.done"))["response"]) == "Short."


MS_PER_CHAR = 8
# Answers that are still there of a conversation's 256 items.
MIN_REMEMBERED = 50


def num_words_played(text: str, played_ms: float, ms_per_char: float) -> int:
    """Return the number of words of a text that the fake engine has spoken by then."""
    return sum(match.end() * ms_per_char <= played_ms for match in re.finditer(r"\S+", text))


async def interrupt(client: AgentClient, rng: random.Random) -> tuple[str, float, bool]:
    """Interrupt an answer at a random moment. Return what its item says was heard, how much was played, and whether
    all of it was sent."""
    client.audio.clear()
    await client.write("Go on.")
    item = (await client.until("response.output_item.added"))["item"]
    await client.until("response.output_audio.delta")
    begun_s = time.monotonic()
    for _ in range(rng.randrange(1, 40)):
        if (await client.next())["type"] == "response.done":
            break
    else:
        await client.connection.response.cancel()
        await client.until("response.done")
    await asyncio.sleep(rng.random() * 0.15)  # it plays
    played_ms = min(1000 * (time.monotonic() - begun_s) * rng.random(), 500 * len(client.audio) / RATE)
    await client.truncate(item["id"], round(played_ms))
    is_complete = client.events[-1]["response"]["status"] == "completed"
    return await client.transcript(item["id"]), played_ms, is_complete


@pytest.mark.parametrize("num_turns", [100, pytest.param(1_000, marks=[pytest.mark.slow, pytest.mark.timeout(1_800)])])
async def test_history_equals_what_was_heard(backend: StubBackend, num_turns: int) -> None:
    """Interruptions at random moments, before and after the end of an answer. Old items are evicted."""
    rng = random.Random(23)
    engine = FakeSpeechEngine(FakeScript(ms_per_char=MS_PER_CHAR, first_chunk_s=0.001, real_time_factor=0.02))
    heard: list[str] = []
    # An answer may end before its cancel arrives, which is an error of the client.
    limits = {"agent__max_history_chars": 1_000_000, "limits__max_errors_per_connection": 10_000}
    async with talking(backend.url, engine, **limits) as client:
        for number in range(num_turns):
            backend.chats.clear()
            text = f"This is answer {number} and it goes on."
            backend.answers.append(ScriptedAnswer(text, speed=20))
            found, played_ms, is_complete = await interrupt(client, rng)
            assert text.startswith(found)
            # All of it is whole codec frames; of a part the end is not known.
            audio_ms = 500 * len(client.audio) / RATE
            num_words = num_words_played(text, played_ms, audio_ms / len(text) if is_complete else MS_PER_CHAR)
            assert (num_words - 1 if is_complete else 0) <= len(found.split()) <= num_words + 1
            heard.append(found)
            said = [entry["content"] for entry in backend.chats[-1]["messages"] if entry["role"] == "assistant"]
            before = [*filter(None, heard[:-1])]
            assert len(said) >= min(len(before), MIN_REMEMBERED)
            assert said == before[len(before) - len(said) :]
        errors = {event["error"]["code"] for event in client.events if event["type"] == "error"}
        assert errors <= {"response_cancel_not_active"}
    assert len(set(map(len, heard))) > 3, "cut at several places"


async def test_nothing_is_left_of_a_client_that_goes(backend: StubBackend) -> None:
    backend.answers.append(ScriptedAnswer("Word. " * 200))
    async with live_server(agent__llm_url=backend.url) as live:
        async with agent_client(live) as client:
            await client.write("Hello")
            await client.until("response.output_audio.delta")
        await live.freed()
        await until(lambda: not agent_tasks())


async def test_answer_in_a_drain_has_its_terminal_event(backend: StubBackend) -> None:
    """Nothing new is spoken, and the connection is not closed before the client knows."""
    backend.answers.append(ScriptedAnswer("Late, but here.", speed=0.02))
    async with live_server(agent__llm_url=backend.url) as live, agent_client(live) as client:
        await client.write("Hello")
        await until(lambda: len(backend.chats) == 1)
        live.speech.draining = True
        response = (await client.until("response.done"))["response"]
        assert response["status_details"]["error"]["code"] == "draining"


def agent_tasks() -> list[str]:
    return [name for task in asyncio.all_tasks() if (name := task.get_name()).startswith("voicewire agent")]


async def test_keys_and_tokens_are_checked_as_ever(backend: StubBackend) -> None:
    key = "k" * 20
    async with live_server(agent__llm_url=backend.url, auth__api_keys=f"a:{key}") as live:
        async with live.http() as http:
            body = {"ttl_s": 60}
            issued = await http.post("/v1/tokens", json=body, headers={"Authorization": f"Bearer {key}"})
        async with agent_client(live, issued.json()["token"]) as client:
            assert (await client.ask("Hello"))["status"] == "completed"
