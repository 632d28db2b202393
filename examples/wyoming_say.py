"""Synthesize a text through the Wyoming port like Home Assistant: in chunks, with audio while the text arrives.

pip install wyoming
python wyoming_say.py 127.0.0.1 10200 "Hello there." hello.wav
"""

from __future__ import annotations

import asyncio
import sys
import wave

from wyoming.audio import AudioChunk, AudioStart
from wyoming.client import AsyncTcpClient
from wyoming.error import Error
from wyoming.tts import SynthesizeChunk, SynthesizeStart, SynthesizeStop, SynthesizeStopped


async def main() -> None:
    host, port, text, path = sys.argv[1:5]
    async with AsyncTcpClient(host, int(port)) as client:
        await client.write_event(SynthesizeStart().event())
        for word in text.split():
            await client.write_event(SynthesizeChunk(f"{word} ").event())
        await client.write_event(SynthesizeStop().event())
        with wave.open(path, "wb") as file:
            while (event := await client.read_event()) is not None and not SynthesizeStopped.is_type(event.type):
                if AudioStart.is_type(event.type):
                    start = AudioStart.from_event(event)
                    file.setparams((start.channels, start.width, start.rate, 0, "NONE", ""))
                elif AudioChunk.is_type(event.type):
                    file.writeframes(AudioChunk.from_event(event).audio)
                elif Error.is_type(event.type):
                    raise SystemExit(Error.from_event(event).text)


if __name__ == "__main__":
    asyncio.run(main())
