"""A server of Nari's wire that makes silence: one request per connection, audio while text comes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from websockets.asyncio.server import ServerConnection, serve

CHUNK = bytes(2 * 24_000 // 10)
S_PER_CHAR = 0.06


class NariServer:
    """``stall_s`` is a pause in the middle of the audio; ``error`` answers the text instead."""

    def __init__(self, stall_s: float = 0.0, error: str | None = None) -> None:
        self.stall_s, self.error = stall_s, error
        self.num_connections = 0

    async def __aenter__(self) -> str:
        self._server = await serve(self.handle, "127.0.0.1", 0, subprotocols=["nari.speech.v1"])  # type: ignore[list-item]
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def handle(self, socket: ServerConnection) -> None:
        self.num_connections += 1
        await self.send(socket, type="session.created")
        start = json.loads(await socket.recv())
        assert start["type"] == "request.start"
        await self.send(socket, type="request.configured")
        text = await self.receive_text(socket)
        if self.error:
            await self.send(socket, type="error", request_id="r", error={"code": self.error, "message": "no"})
            return
        num_chunks = max(2, round(S_PER_CHAR * len(text) / 0.1))
        for index in range(num_chunks):
            await asyncio.sleep(self.stall_s if index == num_chunks // 2 else 0)
            await socket.send(CHUNK)
        await self.send(socket, type="response.done", request_id="r", stop_reason="stop", audio_chunks=num_chunks)

    async def receive_text(self, socket: ServerConnection) -> str:
        text = ""
        async for message in socket:
            event = json.loads(message)
            if event["type"] == "input_text.end":
                await self.send(socket, type="response.started", audio={"sample_rate": 24_000})
                break
            text += event["text"]
            await self.send(socket, type="input_text.ack", sequence=event["sequence"])
        return text

    @staticmethod
    async def send(socket: ServerConnection, **event: Any) -> None:
        await socket.send(json.dumps(event))
