"""The ``openai`` package on the realtime wire, as its users call it. The other vendors' clients are run by
``tests/sdk/run``."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any, get_args

import openai
import pytest
from openai.resources.realtime.realtime import AsyncRealtimeConnection
from openai.types.realtime import RealtimeServerEvent

from tests.fakes.engine import FakeScript
from tests.realtime.live_server import WAIT_S, LiveServer

KEY = "a-key-of-enough-characters"
TEXTS = ("Hello there, how are you?", "And this is another turn.")
LONG = "This is one sentence of a very long story. " * 40
PUBLISHED_TYPES: dict[str, type[openai.BaseModel]] = {
    get_args(published.model_fields["type"].annotation)[0]: published
    for published in get_args(get_args(RealtimeServerEvent)[0])
}
# Of one character.
LEAST_BYTES = 2 * 24_000 * 0.04 * 0.9


@pytest.fixture
async def connection(live: LiveServer) -> AsyncIterator[AsyncRealtimeConnection]:
    client = openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{live.port}/v1", websocket_base_url=f"{live.url}/v1", api_key=KEY, max_retries=0
    )
    async with client, client.realtime.connect(model="gpt-realtime") as opened:
        assert (await opened.recv()).type == "session.created"
        yield opened


async def write(connection: AsyncRealtimeConnection, text: str) -> None:
    content = [{"type": "input_text", "text": text}]
    await connection.conversation.item.create(item={"type": "message", "role": "user", "content": content})
    await connection.response.create()


async def write_by_the_token(connection: AsyncRealtimeConnection, text: str) -> None:
    for token in text.split(" "):
        await connection.send({"type": "input_text_buffer.append", "delta": token + " "})  # type: ignore[arg-type]
    await connection.send({"type": "input_text_buffer.commit"})  # type: ignore[arg-type]


async def hear(connection: AsyncRealtimeConnection) -> tuple[str, bytes, str]:
    """Status, audio and transcript of the next response."""
    pcm, transcript = b"", ""
    async with asyncio.timeout(WAIT_S):
        async for event in connection:
            if event.type == "response.output_audio.delta":
                pcm += base64.b64decode(event.delta)
            elif event.type == "response.output_audio_transcript.delta":
                transcript += event.delta
            elif event.type == "response.done":
                return event.response.status, pcm, transcript
    raise AssertionError("the connection was closed")


@pytest.mark.parametrize("say", [write, write_by_the_token])
async def test_two_turns(connection: AsyncRealtimeConnection, say: object) -> None:
    for text in TEXTS:
        await say(connection, text)  # type: ignore[operator]
        status, pcm, transcript = await hear(connection)
        assert (status, transcript.strip()) == ("completed", text)
        assert len(pcm) > len(text) * LEAST_BYTES


async def test_an_interruption_and_a_turn_after_it(live: LiveServer, connection: AsyncRealtimeConnection) -> None:
    live.engine.script = FakeScript(ms_per_char=60.0, real_time_factor=0.25)
    await write(connection, LONG)
    async with asyncio.timeout(WAIT_S):
        while (await connection.recv()).type != "response.output_audio.delta":
            pass
    await connection.response.cancel()
    assert (await hear(connection))[0] == "cancelled"
    await write(connection, TEXTS[0])
    assert (await hear(connection))[2].strip() == TEXTS[0]


async def test_every_event_is_of_the_published_types(live: LiveServer, connection: AsyncRealtimeConnection) -> None:
    """The package builds its events unchecked; clients such as openai-agents check each against these types."""
    live.engine.script = FakeScript(ms_per_char=60.0, real_time_factor=0.25)
    events = Events(connection)
    await connection.session.update(session={"type": "realtime", "audio": {"output": {"voice": "marin"}}})
    await events.until("session.updated")
    await write(connection, TEXTS[0])
    done = await events.until("response.done")
    item_id = done["response"]["output"][0]["id"]
    await connection.conversation.item.truncate(item_id=item_id, content_index=0, audio_end_ms=300)
    await connection.conversation.item.retrieve(item_id=item_id)
    await connection.conversation.item.delete(item_id=item_id)
    await connection.input_audio_buffer.clear()
    await write(connection, LONG)
    await events.until("response.output_audio.delta")
    await connection.response.cancel()
    await events.until("response.done")
    await connection.response.create(response={"instructions": "Greet the user."})
    assert (await events.until("error"))["error"]["code"] == "response_input_empty"
    live.engine.script_next(FakeScript(fail_at_frame=0))
    await write(connection, TEXTS[1])
    assert (await events.until("response.done"))["response"]["status"] == "failed"
    assert len(events.kinds) == 18


class Events:
    """Reads raw events and checks each against the package's own types, as openai-agents does."""

    def __init__(self, connection: AsyncRealtimeConnection) -> None:
        self._connection = connection
        self.kinds: set[str] = set()

    async def until(self, kind: str) -> dict[str, Any]:
        async with asyncio.timeout(WAIT_S):
            while True:
                event: dict[str, Any] = json.loads(await self._connection.recv_bytes())
                PUBLISHED_TYPES[event["type"]].model_validate(event, strict=True)
                self.kinds.add(event["type"])
                if event["type"] == kind:
                    return event
