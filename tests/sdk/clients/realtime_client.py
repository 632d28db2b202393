"""OpenAI's Python package speaks through the realtime wire: ``realtime_client.py openai HTTP_URL MODE`` prints JSON.

Modes: ``items`` (two turns, each a user item and a response), ``tokens`` (text token by token, by our own events),
``interrupt`` (the first turn is cancelled and truncated, the second is heard whole).
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from typing import Any

from client_turns import KEY, LONG, TURN_TIMEOUT_S, TURNS, is_enough, keep_cut, played
from openai import AsyncOpenAI

RATE = 24_000
SESSION = {"type": "realtime", "output_modalities": ["audio"], "audio": {"output": {"voice": "marin"}}}


async def say(connection: Any, text: str, mode: str) -> None:
    if mode == "tokens":
        for token in text.split(" "):
            await connection.send({"type": "input_text_buffer.append", "delta": token + " "})
        await connection.send({"type": "input_text_buffer.commit"})
        return
    content = [{"type": "input_text", "text": text}]
    await connection.conversation.item.create(item={"type": "message", "role": "user", "content": content})
    await connection.response.create()


async def hear(connection: Any, text: str) -> dict[str, object]:
    pcm, transcript = b"", ""
    async with asyncio.timeout(TURN_TIMEOUT_S):
        async for event in connection:
            match event.type:
                case "response.output_audio.delta":
                    pcm += base64.b64decode(event.delta)
                case "response.output_audio_transcript.delta":
                    transcript += event.delta
                case "response.done":
                    assert event.response.status == "completed", event
                    assert transcript.strip() == text, transcript
                    return played(text, pcm, RATE)
                case "error":
                    raise RuntimeError(event)
    raise RuntimeError("closed")


async def interrupt(connection: Any) -> None:
    await say(connection, LONG, "items")
    item_id, pcm = None, b""
    async with asyncio.timeout(TURN_TIMEOUT_S):
        async for event in connection:
            if event.type == "response.output_item.added":
                item_id = event.item.id
            if event.type == "response.output_audio.delta":
                pcm += base64.b64decode(event.delta)
            if is_enough(pcm, RATE):
                await asyncio.sleep(0.5)
                break
        assert item_id is not None
        await connection.response.cancel()
        await connection.conversation.item.truncate(item_id=item_id, content_index=0, audio_end_ms=400)
        seen = set()
        async for event in connection:
            seen.add(event.type)
            if event.type == "response.output_audio.delta":
                pcm += base64.b64decode(event.delta)
            if event.type == "response.done":
                assert event.response.status == "cancelled", event
            if {"response.done", "conversation.item.truncated"} <= seen:
                break
        keep_cut(pcm, RATE)
        await connection.conversation.item.retrieve(item_id=item_id)
        async for event in connection:
            if event.type == "conversation.item.retrieved":
                heard = event.item.content[0].transcript
                assert LONG.startswith(heard), heard
                assert len(heard) < len(LONG) / 2, heard
                return


async def main() -> None:
    _, url, mode = sys.argv[1:4]
    client = AsyncOpenAI(api_key=KEY, base_url=f"{url}/v1", websocket_base_url=f"{url.replace('http', 'ws', 1)}/v1")
    turns = []
    async with client.realtime.connect(model="gpt-realtime") as connection:
        await connection.session.update(session=SESSION)
        if mode == "interrupt":
            await interrupt(connection)
        for text in TURNS:
            await say(connection, text, mode)
            turns.append(await hear(connection, text))
    print(json.dumps({"turns": turns, "errors": []}))


if __name__ == "__main__":
    asyncio.run(main())
