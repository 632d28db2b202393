"""One task over the native protocol: text in while it is written, audio out while it is spoken. Writes TASK.wav.

The protocol carries names of voices and no recordings: store a voice to clone it (curl.sh, docs/guides/voices.md).

pip install websockets
python examples/online/native_wire.py speak ws://127.0.0.1:8765
python examples/online/native_wire.py clone ws://127.0.0.1:8765 ann
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import sys
import time
import wave
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

# Header of an audio message: version, kind, packets, response, sequence, sample time.
HEADER = struct.Struct(">BBHIII")
RATE = 24_000
SUBPROTOCOLS = [Subprotocol("voicewire.v1")]
BASE: dict[str, Any] = {"format": {"encoding": "pcm_s16le", "sample_rate": RATE}, "pace": "burst", "seed": 5}
TASKS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "speak": (["Hello there, how are you?"], {"sampling": {"temperature": 0.7}}),
    "custom_voice": (["I did it."], {"instruct": "Very happy."}),
    "voice_design": (["Welcome aboard."], {"instruct": "A calm, deep, old voice."}),
    "clone": (["Hello there."], {}),
    "batch": (["Hello there.", "How are you?", "Fine, thank you."], {}),
}


async def write(socket: ClientConnection, name: str, text: str, settings: dict[str, Any]) -> None:
    """Start a response and write its text word by word, as a language model would."""
    events: list[dict[str, Any]] = [{"type": "response.create", "settings": BASE | settings}]
    events += [{"type": "text.append", "text": f"{word} "} for word in text.split()]
    for event in [*events, {"type": "text.end"}]:
        await socket.send(json.dumps(event | {"response_id": name}))


async def read(socket: ClientConnection, names: list[str]) -> None:
    """Write one file for each response and print its timing."""
    start_s = time.monotonic()
    files: dict[str, wave.Wave_write] = {}
    num_samples, first_s = dict.fromkeys(names, 0), dict[str, float]()
    # Names by the numbers of audio messages.
    numbers: dict[int, str] = {}
    num_done = 0
    while num_done < len(names):
        message = await socket.recv()
        if isinstance(message, bytes):
            name, pcm = numbers[HEADER.unpack_from(message)[3]], b"".join(packets(message))
            first_s.setdefault(name, time.monotonic() - start_s)
            num_samples[name] += len(pcm) // 2
            files[name].writeframes(pcm)
            continue
        event = json.loads(message)
        match event["type"]:
            case "response.created":
                name = numbers[event["response"]] = event["response_id"]
                files[name] = wave.open(f"{name}.wav", "wb")
                files[name].setparams((1, 2, RATE, 0, "NONE", ""))
            case "response.done":
                if event.get("error"):
                    raise SystemExit(event["error"]["message"])
                name = event["response_id"]
                files[name].close()
                num_done += 1
                timing = {"file": f"{name}.wav", "status": event["status"], "audio_s": num_samples[name] / RATE}
                print(json.dumps(timing | {"first_audio_ms": round(1000 * first_s.get(name, 0), 1)}))
            case "error":
                raise SystemExit(event["message"])


def packets(message: bytes) -> list[bytes]:
    found, at = [], HEADER.size
    for _ in range(HEADER.unpack_from(message)[2]):
        size = int.from_bytes(message[at : at + 2], "big")
        found.append(message[at + 2 : at + 2 + size])
        at += 2 + size
    return found


async def main() -> None:
    task, url, voice = [*sys.argv[1:], ""][:3]
    if task not in TASKS:
        raise SystemExit(f"no such task: {task}")
    texts, settings = TASKS[task]
    names = [task] if len(texts) == 1 else [f"{task}-{i}" for i in range(len(texts))]
    key = os.environ.get("VOICEWIRE_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with connect(f"{url}/v1/speech", additional_headers=headers, subprotocols=SUBPROTOCOLS) as socket:
        for name, text in zip(names, texts, strict=True):
            await write(socket, name, text, settings | ({"voice": voice} if voice else {}))
        await read(socket, names)


if __name__ == "__main__":
    asyncio.run(main())
