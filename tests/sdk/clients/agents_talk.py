"""Talk with the built-in agent through OpenAI's agents package: ``agents_talk.py HTTP_URL FILE NUM_TURNS`` prints JSON.

FILE holds a spoken turn, s16le at 24 kHz, with the silence that ends it. The first turn is spoken again while its
answer plays. What the package logs as a warning or an error is an error of the run.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

from agents.realtime import RealtimeAgent, RealtimeRunner
from client_turns import KEY, TURN_TIMEOUT_S, Warnings

CHUNK_BYTES = 4_800
BYTES_PER_S = 48_000
PAUSE_S = 0.2


async def speak(session: Any, said: bytes) -> None:
    for start in range(0, len(said), CHUNK_BYTES):
        await session.send_audio(said[start : start + CHUNK_BYTES])


async def answer(session: Any, interrupting: bytes = b"") -> dict[str, int]:
    """Wait for the end of an answer, which is interrupted by ``interrupting``; count bytes and interruptions."""
    counts = {"audio_bytes": 0, "interruptions": 0}
    async with asyncio.timeout(TURN_TIMEOUT_S):
        async for event in session:
            match event.type:
                case "audio":
                    counts["audio_bytes"] += len(event.audio.data)
                    if interrupting:
                        said, interrupting = interrupting, b""
                        await speak(session, said)
                case "audio_interrupted":
                    counts["interruptions"] += 1
                case "error":
                    raise RuntimeError(event.error)
                case "agent_end":
                    return counts
    raise RuntimeError("closed")


async def main(url: str, said: bytes, num_turns: int) -> None:
    warnings = Warnings()
    logging.getLogger().addHandler(warnings)
    runner = RealtimeRunner(
        RealtimeAgent(name="Agent", instructions="Answer briefly."), config={"tracing_disabled": True}
    )
    address = f"{url.replace('http', 'ws', 1)}/v1/realtime?model=gpt-realtime"
    async with await runner.run(model_config={"api_key": KEY, "url": address}) as session:
        await speak(session, said)
        answers = [await answer(session, said), await answer(session)]
        for _ in range(num_turns - 2):
            await asyncio.sleep(answers[-1]["audio_bytes"] / BYTES_PER_S + PAUSE_S)  # it is played
            await speak(session, said)
            answers.append(await answer(session))
    print(json.dumps({"answers": answers, "errors": warnings.messages}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]).read_bytes(), int(sys.argv[3])))
