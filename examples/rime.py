"""Use Rime's ``/ws3`` with voicewire: text by context id in, audio and word times out.

pip install websockets
python rime.py ws://127.0.0.1:8765 hello.wav
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
import wave

import websockets

ADDRESS = "/ws3?speaker=clara&audioFormat=pcm&samplingRate=24000&segment=immediate"


async def main() -> None:
    url, path = sys.argv[1:3]
    headers = {"Authorization": f"Bearer {os.environ.get('VOICEWIRE_API_KEY', 'none')}"}
    pcm = b""
    async with websockets.connect(url + ADDRESS, additional_headers=headers) as socket:
        for word in "This text uses the protocol of another vendor.".split():
            await socket.send(json.dumps({"text": f"{word} ", "contextId": "turn-1"}))
        await socket.send(json.dumps({"operation": "flush", "contextId": "turn-1"}))
        async for message in socket:
            event = json.loads(message)
            match event["type"]:
                case "chunk":
                    pcm += base64.b64decode(event["data"])
                case "timestamps":
                    times = event["word_timestamps"]
                    for word, start, end in zip(times["words"], times["start"], times["end"], strict=True):
                        print(f"{start:6.2f} {end:6.2f}  {word}")
                case "error":
                    raise SystemExit(event["message"])
                case "done":
                    break
    with wave.open(path, "wb") as file:
        file.setparams((1, 2, 24_000, 0, "NONE", ""))
        file.writeframes(pcm)


if __name__ == "__main__":
    asyncio.run(main())
