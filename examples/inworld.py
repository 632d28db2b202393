"""Use Inworld's bidirectional stream with voicewire: a context, text in, audio and word times out.

pip install websockets
python inworld.py ws://127.0.0.1:8765 hello.wav
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
import wave

import websockets

CREATE = {
    "voiceId": "clara",
    "audioConfig": {"audioEncoding": "PCM", "sampleRateHertz": 24_000},
    "timestampType": "WORD",
}


async def main() -> None:
    url, path = sys.argv[1:3]
    headers = {"Authorization": f"Basic {os.environ.get('VOICEWIRE_API_KEY', 'none')}"}
    pcm = b""
    async with websockets.connect(f"{url}/tts/v1/voice:streamBidirectional", additional_headers=headers) as socket:

        async def say(**what: object) -> None:
            await socket.send(json.dumps({**what, "contextId": "turn-1"}))

        await say(create=CREATE)
        for word in "A context takes text as it comes.".split():
            await say(send_text={"text": f"{word} "})
        await say(flush_context={})
        await say(close_context={})
        async for message in socket:
            result = json.loads(message)["result"]
            if result["status"]["code"]:
                raise SystemExit(result["status"]["message"])
            chunk = result.get("audioChunk", {})
            pcm += base64.b64decode(chunk.get("audioContent", ""))
            if times := chunk.get("timestampInfo", {}).get("wordAlignment"):
                for word, start in zip(times["words"], times["wordStartTimeSeconds"], strict=True):
                    print(f"{start:6.2f}  {word}")
            if "contextClosed" in result:
                break
    with wave.open(path, "wb") as file:
        file.setparams((1, 2, 24_000, 0, "NONE", ""))
        file.writeframes(pcm)


if __name__ == "__main__":
    asyncio.run(main())
