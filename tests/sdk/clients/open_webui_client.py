"""Send what Open WebUI's server sends for its speech engine ``openai``: ``open_webui_client.py openai HTTP_URL MODE``
prints JSON. It is an application, so these are its requests and not its code.

It names no format and stores the answer as MP3. It asks for the list of voices without a key. Modes: ``speech``;
``user``, with the headers about its user; ``voices``, with a voice from the list, which only a server without keys
shows to it.
"""

from __future__ import annotations

import asyncio
import json
import sys

import aiohttp
from client_turns import KEY, TURN_TIMEOUT_S, TURNS, decoded, played

USER = {
    "X-OpenWebUI-User-Name": "Zoe%20M%C3%BCller",
    "X-OpenWebUI-User-Id": "5a1b",
    "X-OpenWebUI-User-Email": "zoe@example.com",
    "X-OpenWebUI-User-Role": "admin",
}


async def voices(session: aiohttp.ClientSession, base_url: str) -> dict[str, str]:
    async with session.get(f"{base_url}/audio/voices") as answer:
        answer.raise_for_status()
        return {voice["id"]: voice["name"] for voice in (await answer.json())["voices"]}


async def speech(session: aiohttp.ClientSession, base_url: str, mode: str, voice: str, text: str) -> bytes:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    if mode == "user":
        headers |= USER
    body = {"input": text, "voice": voice, "model": "tts-1"}
    async with session.post(f"{base_url}/audio/speech", json=body, headers=headers) as answer:
        if answer.status != 200:
            raise RuntimeError(f"{answer.status} {await answer.text()}")
        assert answer.content_type == "audio/mpeg", answer.content_type
        return await answer.read()


async def main() -> None:
    _, url, mode = sys.argv[1:4]
    base_url = f"{url}/open-webui/v1"
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TURN_TIMEOUT_S)) as session:
        voice = next(iter(await voices(session, base_url))) if mode == "voices" else "alloy"
        turns = [played(text, *decoded(await speech(session, base_url, mode, voice, text))) for text in TURNS]
    print(json.dumps({"turns": turns, "errors": []}))


if __name__ == "__main__":
    asyncio.run(main())
