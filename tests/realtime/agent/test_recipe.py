"""The command of the README, with a language model that answers in the form of Ollama."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from asyncio.subprocess import PIPE, create_subprocess_exec
from pathlib import Path

import pytest

from realtime.commands.serve import FLAGS, add_arguments
from realtime.commands.startup import collect_settings
from tests.realtime.agent.agent_client import connected_client, spoken, talking
from tests.realtime.agent.stub_backend import ScriptedAnswer, StubBackend

ROOT = Path(__file__).parents[3]
COMMAND = re.compile(r"\./run (serve --llm http://127\.0\.0\.1:11434\S*?)(?=[\s`])")
ANSWER = "It is a quarter past three."


def ollama_answer(text: str) -> ScriptedAnswer:
    """An answer of a model that thinks first, with empty deltas around it."""
    deltas: list[dict[str, str]] = [{"content": "", "reasoning": "The user asks for the time."}]
    deltas += [{"content": token} for token in re.findall(r" ?\S+", text)]
    choices = [{"index": 0, "delta": {"role": "assistant"} | delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": "stop"})
    about = {"id": "chatcmpl-7", "object": "chat.completion.chunk", "created": 1, "model": "small"}
    chunks = [about | {"system_fingerprint": "fp_ollama", "choices": [choice]} for choice in choices]
    events = [f"data: {data}\n\n".encode() for data in (*map(json.dumps, chunks), "[DONE]")]
    return ScriptedAnswer(raw=events)


@pytest.mark.parametrize("page", ["README.md", "docs/guides/agent.md"])
async def test_command_of_the_docs_talks_to_ollama(backend: StubBackend, page: str) -> None:
    """Its options, with the address of the stub."""
    [command, *_] = COMMAND.findall((ROOT / page).read_text())
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    settings = collect_settings(parser.parse_args(command.split()[1:]), FLAGS)
    assert list(settings) == ["agent.llm_url"]
    backend.answers.append(ollama_answer(ANSWER))
    url = str(settings["agent.llm_url"]).replace("http://127.0.0.1:11434", backend.url)
    async with talking(url) as client:
        assert spoken(await client.ask("How late is it?")) == ANSWER
    assert backend.chats[0]["model"] == "small", "the first that the server lists"


@pytest.mark.slow
async def test_newcomer_needs_no_other_command(backend: StubBackend) -> None:
    """The whole server with the embedded voice, as the README starts it."""
    [command, *_] = COMMAND.findall((ROOT / "README.md").read_text())
    backend.answers.append(ollama_answer(ANSWER))
    arguments = command.replace("http://127.0.0.1:11434", backend.url).split()
    process = await create_subprocess_exec(sys.executable, "-m", "realtime.cli", *arguments, "--port", "0", stdout=PIPE)
    assert process.stdout is not None
    addresses: dict[str, str] = {}
    try:
        while "wire" not in addresses:
            name, address = (await process.stdout.readline()).decode().split()
            addresses[name] = address
        assert addresses["talk"] == f"{addresses['page']}#talk"
        async with asyncio.timeout(60), connected_client(addresses["wire"].removesuffix("/v1/speech")) as client:
            assert spoken(await client.ask("How late is it?")) == ANSWER
            assert len(client.audio) > 48_000
    finally:
        process.terminate()
        await process.wait()
