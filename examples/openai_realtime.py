"""Use OpenAI's own package with voicewire: text token by token in, speech and transcript out, an interruption.

pip install "openai[realtime]"
OPENAI_API_KEY=any python openai_realtime.py http://127.0.0.1:8765 hello.wav
"""

from __future__ import annotations

import asyncio
import base64
import sys
import wave

from openai import AsyncOpenAI

TOKENS = "This reply goes to the server token by token , as a language model writes it .".split()


async def main() -> None:
    url, path = sys.argv[1:3]
    client = AsyncOpenAI(base_url=f"{url}/v1", websocket_base_url=f"{url.replace('http', 'ws', 1)}/v1")
    pcm = b""
    async with client.realtime.connect(model="gpt-realtime") as connection:
        for token in TOKENS:  # these two events are extensions of voicewire
            await connection.send({"type": "input_text_buffer.append", "delta": f"{token} "})
        await connection.send({"type": "input_text_buffer.commit"})
        async for event in connection:
            match event.type:
                case "response.output_audio.delta":
                    pcm += base64.b64decode(event.delta)
                case "response.output_audio_transcript.delta":
                    print(event.delta, end="", flush=True)
                case "response.done":
                    print(f"\n{event.response.status}")
                    break
                case "error":
                    raise SystemExit(event.error.message)
        await interrupt(connection)
    with wave.open(path, "wb") as file:
        file.setparams((1, 2, 24_000, 0, "NONE", ""))
        file.writeframes(pcm)


async def interrupt(connection) -> None:
    """Send a whole text and interrupt it after 1.2 s; the item then holds the heard text."""
    text = "One two three four five six seven eight nine ten eleven twelve."
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    await connection.conversation.item.create(item=item)
    await connection.response.create()
    async for event in connection:
        if event.type == "response.output_item.added":
            item_id = event.item.id
        if event.type == "response.done":
            await connection.conversation.item.truncate(item_id=item_id, content_index=0, audio_end_ms=1200)
            await connection.conversation.item.retrieve(item_id=item_id)
        if event.type == "conversation.item.retrieved":
            print("heard:", event.item.content[0].transcript)
            return


if __name__ == "__main__":
    asyncio.run(main())
