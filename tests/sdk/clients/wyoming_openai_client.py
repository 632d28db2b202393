"""Speak through wyoming-openai: ``wyoming_openai_client.py openai HTTP_URL MODE`` prints JSON.

The package is a server for Home Assistant in front of an OpenAI address: it is started as its first example says, and
asked over Wyoming. Modes: ``whole`` (``synthesize``), ``streamed`` (text in chunks), ``instructions``.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from client_turns import KEY, TURN_TIMEOUT_S, TURNS, played
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.info import Describe, Info
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop, SynthesizeStopped, SynthesizeVoice

TROUBLE = re.compile(r"\b(WARNING|ERROR|CRITICAL|Traceback)\b")
# It has no speech recognition to offer, and says so.
EXPECTED = "No ASR models specified"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def proxy(url: str, mode: str, errors: list[str]) -> AsyncIterator[int]:
    port = free_port()
    models = "--tts-streaming-models" if mode == "streamed" else "--tts-models"
    command = [sys.executable, "-m", "wyoming_openai", "--uri", f"tcp://127.0.0.1:{port}", "--log-level", "WARNING"]
    command += ["--tts-openai-url", f"{url}/v1", "--tts-openai-key", KEY, models, "tts-1", "--tts-voices", "alloy"]
    if mode == "instructions":
        command += ["--tts-instructions", "Speak in a cheerful and positive tone."]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE, stdout=sys.stderr)
    try:
        yield port
    finally:
        process.terminate()
        _, logged = await process.communicate()
        lines = logged.decode().splitlines()
        errors += [line for line in lines if TROUBLE.search(line) and EXPECTED not in line]


async def connected(port: int) -> AsyncTcpClient:
    async with asyncio.timeout(TURN_TIMEOUT_S):
        while True:
            client = AsyncTcpClient("127.0.0.1", port)
            try:
                await client.connect()
            except OSError:
                await asyncio.sleep(0.1)
            else:
                return client


async def next_event(client: AsyncTcpClient) -> Any:
    event = await client.read_event()
    if event is None:
        raise RuntimeError("closed")
    return event


async def described(client: AsyncTcpClient) -> Info:
    await client.write_event(Describe().event())
    while True:
        event = await next_event(client)
        if Info.is_type(event.type):
            return Info.from_event(event)


async def speak(client: AsyncTcpClient, text: str, mode: str) -> dict[str, object]:
    voice = SynthesizeVoice(name="alloy")
    if mode == "streamed":
        await client.write_event(SynthesizeStart(voice=voice).event())
        for word in text.split(" "):
            await client.write_event(SynthesizeChunk(text=word + " ").event())
        await client.write_event(SynthesizeStop().event())
    else:
        await client.write_event(Synthesize(text=text, voice=voice).event())
    ends_with = SynthesizeStopped if mode == "streamed" else AudioStop
    pcm, rate = b"", 0
    while True:
        event = await next_event(client)
        if AudioStart.is_type(event.type):
            rate = AudioStart.from_event(event).rate
        elif AudioChunk.is_type(event.type):
            pcm += AudioChunk.from_event(event).audio
        elif ends_with.is_type(event.type):
            return played(text, pcm, rate)
        elif event.type == "error":
            raise RuntimeError(event.data)


async def main() -> None:
    _, url, mode = sys.argv[1:4]
    errors: list[str] = []
    turns = []
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(proxy(url, mode, errors))
        client = await connected(port)
        stack.push_async_callback(client.disconnect)
        async with asyncio.timeout(TURN_TIMEOUT_S):
            info = await described(client)
        assert [voice.name for program in info.tts for voice in program.voices] == ["alloy"]
        for text in TURNS:
            async with asyncio.timeout(TURN_TIMEOUT_S):
                turns.append(await speak(client, text, mode))
    print(json.dumps({"turns": turns, "errors": errors}))


if __name__ == "__main__":
    asyncio.run(main())
