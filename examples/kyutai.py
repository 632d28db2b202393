"""Use Kyutai's streaming protocol with voicewire: words in, PCM and word times out, as MessagePack.

pip install msgpack numpy websockets
python kyutai.py ws://127.0.0.1:8765 hello.wav
"""

from __future__ import annotations

import asyncio
import os
import sys
import wave

import msgpack
import numpy as np
import websockets


async def write(socket: websockets.ClientConnection, text: str) -> None:
    for word in text.split():
        await socket.send(msgpack.packb({"type": "Text", "text": word}))
    await socket.send(msgpack.packb({"type": "Eos"}))


async def main() -> None:
    url, path = sys.argv[1:3]
    headers = {"kyutai-api-key": os.environ.get("VOICEWIRE_API_KEY", "public_token")}
    address = f"{url}/api/tts_streaming?format=PcmMessagePack"
    frames = []
    async with websockets.connect(address, additional_headers=headers) as socket:
        writing = asyncio.create_task(write(socket, "Words go in one by one, and come back with their times."))
        async for message in socket:
            event = msgpack.unpackb(message)
            match event["type"]:
                case "Audio":
                    frames.append(np.array(event["pcm"], np.float32))
                case "Text":
                    print(f"{event['start_s']:6.2f} {event['stop_s']:6.2f}  {event['text']}")
                case "Error":
                    raise SystemExit(event["message"])
        await writing
    with wave.open(path, "wb") as file:
        file.setparams((1, 2, 24_000, 0, "NONE", ""))
        file.writeframes((np.concatenate(frames) * 32_767).astype(np.int16).tobytes())


if __name__ == "__main__":
    asyncio.run(main())
