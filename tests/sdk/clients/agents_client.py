"""Speak through OpenAI's agents package for Python: ``agents_client.py SERVICE HTTP_URL MODE`` prints JSON.

``voice``: a ``VoicePipeline`` with the package's own speech model. Its text comes from a workflow, because this server
transcribes no speech. ``realtime``: a ``RealtimeSession`` that gets its text in user messages. What the package logs as
a warning or an error, such as an event that its types refuse, is an error of the run.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
from client_turns import KEY, LONG, TURN_TIMEOUT_S, TURNS, Warnings, is_enough, keep_cut, played

RATE = 24_000


async def voice(url: str) -> list[dict[str, object]]:
    from agents.voice import (
        AudioInput,
        OpenAIVoiceModelProvider,
        STTModel,
        VoicePipeline,
        VoicePipelineConfig,
        VoiceWorkflowBase,
    )

    class Transcriber(STTModel):
        """Hand out the turns in place of transcripts."""

        model_name = "turns"
        texts = iter(TURNS)

        async def transcribe(self, *_: Any) -> str:
            return next(self.texts)

        async def create_session(self, *_: Any) -> Any:
            raise NotImplementedError

    class Repeat(VoiceWorkflowBase):
        async def run(self, transcription: str) -> AsyncIterator[str]:
            for word in transcription.split(" "):
                yield word + " "

    provider = OpenAIVoiceModelProvider(api_key=KEY, base_url=f"{url}/v1")
    config = VoicePipelineConfig(model_provider=provider, tracing_disabled=True)
    pipeline = VoicePipeline(workflow=Repeat(), stt_model=Transcriber(), config=config)
    turns = []
    for text in TURNS:
        result = await pipeline.run(AudioInput(buffer=np.zeros(RATE, dtype=np.int16)))
        pcm = b""
        async for event in result.stream():
            if event.type == "voice_stream_event_audio" and event.data is not None:
                pcm += event.data.tobytes()
            elif event.type == "voice_stream_event_error":
                raise event.error
        turns.append(played(text, pcm, RATE))
    return turns


async def realtime(url: str, mode: str) -> list[dict[str, object]]:
    from agents.realtime import RealtimeAgent, RealtimeRunner

    runner = RealtimeRunner(
        RealtimeAgent(name="Reader", instructions="Read the text."), config={"tracing_disabled": True}
    )
    address = f"{url.replace('http', 'ws', 1)}/v1/realtime?model=gpt-realtime"
    async with await runner.run(model_config={"api_key": KEY, "url": address}) as session:
        if mode == "interrupt":
            await interrupt(session)
        turns = []
        for text in TURNS:
            await session.send_message(text)
            turns.append(played(text, await receive(session), RATE))
        return turns


async def receive(session: Any) -> bytes:
    """Collect the audio of a turn."""
    pcm = b""
    async with asyncio.timeout(TURN_TIMEOUT_S):
        async for event in session:
            match event.type:
                case "audio":
                    pcm += event.audio.data
                case "error":
                    raise RuntimeError(event.error)
                case "agent_end":
                    return pcm
    raise RuntimeError("closed")


async def interrupt(session: Any) -> None:
    await session.send_message(LONG)
    pcm = b""
    async with asyncio.timeout(TURN_TIMEOUT_S):
        interrupted = False
        async for event in session:
            match event.type:
                case "audio" if not interrupted:
                    pcm += event.audio.data
                    if is_enough(pcm, RATE):
                        interrupted = True
                        await session.interrupt()
                case "error":
                    raise RuntimeError(event.error)
                case "agent_end":
                    break
    keep_cut(pcm, RATE)


async def main() -> None:
    service, url, mode = sys.argv[1:4]
    warnings = Warnings()
    logging.getLogger().addHandler(warnings)
    turns = await (voice(url) if service == "voice" else realtime(url, mode))
    print(json.dumps({"turns": turns, "errors": warnings.messages}))


if __name__ == "__main__":
    asyncio.run(main())
