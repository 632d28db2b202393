"""A client of the agent: the ``openai`` package over a real socket, with each event checked against its types."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, get_args

import openai
from openai.resources.realtime.realtime import AsyncRealtimeConnection
from openai.types.realtime import RealtimeServerEvent

from tests.fakes.engine import FakeSpeechEngine
from tests.realtime.live_server import WAIT_S, LiveServer, live_server

RATE = 24_000
TYPES: dict[str, type[openai.BaseModel]] = {
    get_args(published.model_fields["type"].annotation)[0]: published
    for published in get_args(get_args(RealtimeServerEvent)[0])
}


class AgentClient:
    def __init__(self, connection: AsyncRealtimeConnection) -> None:
        self.connection = connection
        self.events: list[dict[str, Any]] = []
        self.audio = bytearray()

    @property
    def kinds(self) -> list[str]:
        return [event["type"] for event in self.events]

    async def next(self) -> dict[str, Any]:
        event: dict[str, Any] = json.loads(await self.connection.recv_bytes())
        TYPES[event["type"]].model_validate(event, strict=True)
        self.events.append(event)
        if event["type"] == "response.output_audio.delta":
            self.audio += base64.b64decode(event["delta"])
        return event

    async def until(self, kind: str) -> dict[str, Any]:
        async with asyncio.timeout(WAIT_S):
            while (event := await self.next())["type"] != kind:
                pass
            return event

    async def write(self, text: str) -> None:
        """Send a typed turn."""
        content = [{"type": "input_text", "text": text}]
        await self.connection.conversation.item.create(item={"type": "message", "role": "user", "content": content})
        await self.connection.response.create()

    async def ask(self, text: str) -> dict[str, Any]:
        """Send a typed turn; return its response."""
        await self.write(text)
        response: dict[str, Any] = (await self.until("response.done"))["response"]
        return response

    async def truncate(self, item_id: str, played_ms: int) -> None:
        """Report what was played of an item."""
        truncate = self.connection.conversation.item.truncate
        await truncate(item_id=item_id, content_index=0, audio_end_ms=played_ms)

    async def transcript(self, item_id: str) -> str:
        """Return the transcript of an item, as the server has it now."""
        await self.connection.conversation.item.retrieve(item_id=item_id)
        [part] = (await self.until("conversation.item.retrieved"))["item"]["content"]
        return str(part["transcript"])

    async def speak(self, pcm: bytes, chunk_ms: int = 100) -> None:
        """Append audio, as fast as it is accepted."""
        size = RATE * 2 * chunk_ms // 1000
        for start in range(0, len(pcm), size):
            data = base64.b64encode(pcm[start : start + size]).decode()
            await self.connection.input_audio_buffer.append(audio=data)

    async def configure(self, **audio_input: Any) -> dict[str, Any]:
        await self.connection.session.update(session={"type": "realtime", "audio": {"input": audio_input}})
        return await self.until("session.updated")


def spoken(response: dict[str, Any]) -> str:
    """Return the transcript of a response."""
    items = [item for item in response["output"] if item["type"] == "message"]
    return "".join(part["transcript"] for item in items for part in item["content"])


def agent_client(live: LiveServer, key: str = "none") -> AbstractAsyncContextManager[AgentClient]:
    return connected_client(live.url, key)


@asynccontextmanager
async def connected_client(url: str, key: str = "none") -> AsyncIterator[AgentClient]:
    """A client of the server at ``ws://HOST:PORT``."""
    client = openai.AsyncOpenAI(
        base_url=f"{url.replace('ws', 'http', 1)}/v1", websocket_base_url=f"{url}/v1", api_key=key, max_retries=0
    )
    async with client, client.realtime.connect(model="voicewire") as opened:
        connected = AgentClient(opened)
        await connected.until("session.created")
        yield connected


@asynccontextmanager
async def talking(url: str, engine: FakeSpeechEngine | None = None, **flags: object) -> AsyncIterator[AgentClient]:
    """A client of a server whose language model is at ``url``."""
    async with live_server(engine, agent__llm_url=url, **flags) as live, agent_client(live) as client:
        yield client
