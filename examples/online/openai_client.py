"""One task with OpenAI's Python client: fields that OpenAI has not go into ``extra_body``. Writes TASK.wav.

pip install openai
python examples/online/openai_client.py speak http://127.0.0.1:8765
python examples/online/openai_client.py clone http://127.0.0.1:8765 ann.wav "What she says in it."
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI


async def speak(client: AsyncOpenAI, name: str, text: str, **fields: Any) -> None:
    """Stream a text into NAME.wav and print its timing."""
    start_s, first_s, num_bytes = time.monotonic(), 0.0, 0
    async with client.audio.speech.with_streaming_response.create(
        model="any",
        # Empty: the first voice of the model, or the one that the request brings.
        voice="",
        input=text,
        response_format="wav",
        instructions=fields.pop("instructions", ""),
        extra_body={"seed": 5} | fields,
    ) as answer:
        with Path(f"{name}.wav").open("wb") as file:
            async for piece in answer.iter_bytes():
                first_s = first_s or time.monotonic() - start_s
                num_bytes += file.write(piece)
    print(json.dumps({"file": f"{name}.wav", "bytes": num_bytes, "first_byte_ms": round(1000 * first_s, 1)}))


async def embedding_of(client: AsyncOpenAI, recording: Path) -> list[float]:
    """Store a voice, take its embedding, and delete the voice."""
    form = {"name": "openai-example", "consent": "my own voice"}
    files = {"audio_sample": (recording.name, recording.read_bytes(), "audio/wav")}
    headers = {"Content-Type": "multipart/form-data"}
    await client.post("/audio/voices", cast_to=dict[str, Any], body=form, files=files, options={"headers": headers})
    found = await client.get("/audio/voices/openai-example/embedding", cast_to=dict[str, Any])
    await client.delete("/audio/voices/openai-example", cast_to=dict[str, Any])
    numbers: list[float] = found["embedding"]
    return numbers


async def run(client: AsyncOpenAI, task: str, recording: Path, transcript: str) -> None:
    match task:
        case "speak":
            await speak(client, task, "Hello there, how are you?", temperature=0.7)
        case "custom_voice":
            await speak(client, task, "I did it.", instructions="Very happy.")
        case "voice_design":
            await speak(client, task, "Welcome aboard.", instructions="A calm, deep, old voice.")
        case "clone":
            reference = f"data:audio/wav;base64,{base64.b64encode(recording.read_bytes()).decode()}"
            await speak(client, task, "Hello there.", ref_audio=reference)
            if transcript:
                await speak(client, "clone_in_context", "Hello there.", ref_audio=reference, ref_text=transcript)
        case "embedding":
            numbers = await embedding_of(client, recording)
            await speak(client, task, "Hello there.", speaker_embedding=numbers)
        case "batch":
            texts = ("Hello there.", "How are you?", "Fine, thank you.")
            await asyncio.gather(*(speak(client, f"batch-{i}", text) for i, text in enumerate(texts)))
        case _:
            raise SystemExit(f"no such task: {task}")


async def main() -> None:
    task, url, recording, transcript = [*sys.argv[1:], "", ""][:4]
    key = os.environ.get("VOICEWIRE_API_KEY", "any, if the server has no keys")
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key=key) as client:
        await run(client, task, Path(recording), transcript)


if __name__ == "__main__":
    asyncio.run(main())
