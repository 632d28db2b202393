"""The package ``xiaozhi-client`` as a device: it greets, writes, hears two replies and breaks into the second.

``xiaozhi_device.py URL LIBOPUS`` prints what it heard as JSON. Its microphone and loudspeaker are left out.
"""

from __future__ import annotations

import asyncio
import ctypes.util
import json
import sys
import tempfile
import types
from pathlib import Path

URL, LIBOPUS = sys.argv[1:3]
find_library = ctypes.util.find_library
ctypes.util.find_library = lambda name: LIBOPUS if name == "opus" else find_library(name)
sys.modules["sounddevice"] = types.ModuleType("sounddevice")

import numpy as np  # noqa: E402  the library of Opus has to be found first
from xiaozhi_client.client import XiaozhiClient  # noqa: E402
from xiaozhi_client.types import ClientConfig  # noqa: E402

WAIT_S = 60
HEARD_S = 1.0


async def main(folder: str) -> dict:
    client = XiaozhiClient(ClientConfig(ws_url=URL))
    client.audio_dir = folder

    async def no_player() -> None:
        """There is no loudspeaker."""

    client._run_audio_player = no_player
    greeted, ended = asyncio.Event(), asyncio.Queue()
    hello: dict = {}

    async def on_hello(message: dict) -> None:
        hello.update(message)
        greeted.set()

    async def on_end(message: dict) -> None:
        await asyncio.sleep(0.1)  # it takes messages and sound from two queues
        pcm = np.frombuffer(bytes(client.pcm_buffer), np.int16)
        ended.put_nowait({"duration_s": pcm.size / 16_000, "peak": int(np.abs(pcm).max(initial=0))})

    client.on_hello_message, client.on_tts_end = on_hello, on_end
    await client.connect()
    await asyncio.wait_for(greeted.wait(), WAIT_S)
    await client.send_txt_message("one")
    turns = [await asyncio.wait_for(ended.get(), WAIT_S)]
    await client.send_txt_message("two")
    while len(client.pcm_buffer) < HEARD_S * 32_000 or turns[0]["duration_s"] * 32_000 == len(client.pcm_buffer):
        await asyncio.sleep(0.02)
    await client.abort()
    turns.append(await asyncio.wait_for(ended.get(), WAIT_S))
    return {"hello": hello, "turns": turns}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        told = asyncio.run(main(folder))
        print(json.dumps({**told, "files": len(list(Path(folder).iterdir()))}))
