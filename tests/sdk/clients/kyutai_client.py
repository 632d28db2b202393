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
from client_turns import KEY, LONG, TURN_TIMEOUT_S, TURNS, is_enough, keep_cut, played

RATE = 24_000


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
    return played(text, as_s16(frames), RATE, words)


def as_s16(frames: list[np.ndarray]) -> bytes:
    return (np.concatenate(frames) * 32_767).astype("<i2").tobytes()


async def drop(url: str) -> None:
    async with dial(url) as socket:
        await send(socket, LONG)
        pcm = b""
        while not is_enough(pcm, RATE):
            told = msgpack.unpackb(await socket.recv())
            if told["type"] == "Audio":
                pcm += as_s16([np.array(told["pcm"], np.float32)])
        keep_cut(pcm, RATE)
        socket.transport.abort()


async def main() -> None:
    _, url, mode = sys.argv[1:4]
    if mode == "interrupt":
        await drop(url)
    turns = [await asyncio.wait_for(speak(url, text), TURN_TIMEOUT_S) for text in TURNS]
    print(json.dumps({"turns": turns, "errors": []}))


if __name__ == "__main__":
    asyncio.run(main())
