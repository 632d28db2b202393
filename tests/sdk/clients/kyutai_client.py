"""Kyutai's protocol as its own client scripts speak it: ``kyutai_client.py kyutai HTTP_URL MODE`` prints JSON.

Modes: ``words`` (MessagePack and PCM, a word a message, as the scripts of delayed-streams-modeling send them),
``interrupt`` (the first connection is dropped while it speaks).
"""

from __future__ import annotations

import asyncio
import json
import sys

import msgpack
import numpy as np
import websockets

KEY = "a-key-of-enough-characters"
TURNS = ("Hello there, how are you today? It is nice to hear from you.", "This is the second turn. Goodbye for now.")
LONG = " ".join(f"This is sentence number {number} of a very long story." for number in range(30))
RATE = 24_000
TURN_TIMEOUT_S = 30.0


def dial(url: str) -> websockets.connect:
    address = f"{url.replace('http', 'ws', 1)}/api/tts_streaming?voice=expresso/ex03.wav&format=PcmMessagePack"
    return websockets.connect(address, additional_headers={"kyutai-api-key": KEY})


async def send(socket: websockets.ClientConnection, text: str) -> None:
    for word in text.split():
        await socket.send(msgpack.packb({"type": "Text", "text": word}))
    await socket.send(msgpack.packb({"type": "Eos"}))


async def speak(url: str, text: str) -> dict[str, object]:
    frames, words = [], []
    async with dial(url) as socket:
        sending = asyncio.create_task(send(socket, text))
        async for message in socket:
            told = msgpack.unpackb(message)
            match told["type"]:
                case "Audio":
                    frames.append(np.array(told["pcm"], np.float32))
                case "Text":
                    words.append((told["text"], told["start_s"], told["stop_s"]))
                case "Error":
                    raise RuntimeError(told["message"])
        await sending
    pcm = np.concatenate(frames)
    peak = int(np.abs(pcm).max() * 32_767)
    return {"text": text, "duration_s": len(pcm) / RATE, "peak": peak, "words": words}


async def drop(url: str) -> None:
    async with dial(url) as socket:
        await send(socket, LONG)
        while msgpack.unpackb(await socket.recv())["type"] != "Audio":
            pass
        socket.transport.abort()


async def main() -> None:
    _, url, mode = sys.argv[1:4]
    if mode == "interrupt":
        await drop(url)
    turns = [await asyncio.wait_for(speak(url, text), TURN_TIMEOUT_S) for text in TURNS]
    print(json.dumps({"turns": turns, "errors": []}))


if __name__ == "__main__":
    asyncio.run(main())
