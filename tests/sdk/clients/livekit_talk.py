"""Talk with the built-in agent through LiveKit's realtime model: ``livekit_talk.py HTTP_URL FILE NUM_TURNS`` prints
JSON.

FILE holds a spoken turn, s16le at 24 kHz, with the silence that ends it. A session of LiveKit Agents receives it from a
microphone and plays the answers, both in real time. The second turn is spoken while the first answer plays.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from pathlib import Path

from client_turns import KEY, TURN_TIMEOUT_S, Warnings
from livekit import rtc
from livekit.agents import Agent, AgentSession, utils
from livekit.agents.voice import io
from livekit.plugins import openai
from livekit_client import Speakers

RATE = 24_000
FRAME_S = 0.02
FRAME_BYTES = round(2 * RATE * FRAME_S)
# Playback before the second turn.
LISTENING_S = 1.0


class LiveKitMicrophone(io.AudioInput):
    """Gives silence in real time, and what is spoken."""

    def __init__(self) -> None:
        super().__init__(label="microphone")
        self._spoken = b""
        self._next_s = time.monotonic()

    def speak(self, said: bytes) -> None:
        self._spoken += said

    async def __anext__(self) -> rtc.AudioFrame:
        self._next_s += FRAME_S
        await asyncio.sleep(self._next_s - time.monotonic())
        data, self._spoken = self._spoken[:FRAME_BYTES], self._spoken[FRAME_BYTES:]
        return rtc.AudioFrame(data.ljust(FRAME_BYTES, b"\0"), RATE, 1, FRAME_BYTES // 2)


async def main(url: str, said: bytes, num_turns: int) -> None:
    warnings = Warnings()
    logging.getLogger().addHandler(warnings)
    finished: asyncio.Queue[io.PlaybackFinishedEvent] = asyncio.Queue()
    model = openai.realtime.RealtimeModel(api_key=KEY, base_url=f"{url}/v1")
    answers = []
    # The microphone has no echo, and the speakers cannot pause.
    handling = {"interruption": {"resume_false_interruption": False}}
    async with AgentSession(llm=model, aec_warmup_duration=None, turn_handling=handling) as session:
        session.input.audio = microphone = LiveKitMicrophone()
        session.output.audio = speakers = Speakers()
        speakers.on("playback_finished", finished.put_nowait)
        await session.start(Agent(instructions="Answer briefly."))
        microphone.speak(said)
        async with asyncio.timeout(TURN_TIMEOUT_S):
            while speakers.played_s < LISTENING_S:
                await asyncio.sleep(FRAME_S)
        for _ in range(num_turns - 1):
            microphone.speak(said)
            async with asyncio.timeout(TURN_TIMEOUT_S):
                answers.append(await finished.get())
                if answers[-1].interrupted:  # by this turn, whose answer follows
                    answers.append(await finished.get())
        history = [item for item in session.history.items if item.type == "message"]
    told = [
        {"audio_bytes": round(2 * RATE * one.playback_position), "interruptions": int(one.interrupted)}
        for one in answers
    ]
    texts = [(item.role, item.text_content, item.interrupted) for item in history]
    print(json.dumps({"answers": told, "history": texts, "errors": warnings.messages}))


async def run(url: str, said: bytes, num_turns: int) -> None:
    async with utils.http_context.open():
        await main(url, said, num_turns)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], Path(sys.argv[2]).read_bytes(), int(sys.argv[3])))
