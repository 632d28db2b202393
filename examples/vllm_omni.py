"""Use vLLM-Omni's speech stream with voicewire: text in while it is written, PCM and word times out.

pip install websockets
python vllm_omni.py ws://127.0.0.1:8765 hello.wav
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
import wave

import websockets

CONFIG = {
    "type": "session.config",
    "response_format": "pcm",
    "stream_audio": True,
    "word_timestamps": True,
    "split_granularity": "sentence",  # synthesize while the text is written
}


async def main() -> None:
    url, path = sys.argv[1:3]
    key = os.environ.get("VOICEWIRE_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    pcm = b""
    async with websockets.connect(f"{url}/v1/audio/speech/stream", additional_headers=headers) as socket:
        await socket.send(json.dumps(CONFIG))
        for word in "Text comes in word by word, and is spoken at once.".split():
            await socket.send(json.dumps({"type": "input.text", "text": f"{word} "}))
        await socket.send(json.dumps({"type": "input.done"}))
        async for message in socket:
            event = json.loads(message)
            match event["type"]:
                case "audio.chunk":
                    pcm += base64.b64decode(event["audio_b64"])
                    for word in event["timestamps"] or []:
                        print(f"{word['start_ms']:6.0f} {word['end_ms']:6.0f} ms  {word['word']}")
                case "error":
                    raise SystemExit(event["message"])
                case "session.done":
                    break
    with wave.open(path, "wb") as file:
        file.setparams((1, 2, 24_000, 0, "NONE", ""))
        file.writeframes(pcm)


if __name__ == "__main__":
    asyncio.run(main())
