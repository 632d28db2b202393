"""Talk with the built-in agent through pipecat's realtime service: ``pipecat_talk.py HTTP_URL FILE NUM_TURNS`` prints
JSON.

FILE holds a spoken turn, s16le at 24 kHz, with the silence that ends it. A pipeline of pipecat receives it from a
transport and plays the answers, both in real time. The second turn is spoken while the first answer plays.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from pathlib import Path

from client_turns import KEY, TURN_TIMEOUT_S
from loguru import logger
from pipecat.frames.frames import (
    BotStartedSpeakingFrame,
    BotStoppedSpeakingFrame,
    EndFrame,
    Frame,
    InputAudioRawFrame,
    InterruptionFrame,
    OutputAudioRawFrame,
    StartFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from pipecat.transports.base_input import BaseInputTransport
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import TransportParams
from pipecat.workers.runner import WorkerRunner

RATE = 24_000
FRAME_S = 0.02
FRAME_BYTES = round(2 * RATE * FRAME_S)
# Playback before the second turn.
LISTENING_S = 1.0
PARAMS = TransportParams(
    audio_in_enabled=True, audio_in_sample_rate=RATE, audio_out_enabled=True, audio_out_sample_rate=RATE
)


class PipecatMicrophone(BaseInputTransport):
    """Gives silence in real time, and what is spoken."""

    def __init__(self) -> None:
        super().__init__(PARAMS)
        self._spoken = b""
        self._running: asyncio.Task[None] | None = None

    def speak(self, said: bytes) -> None:
        self._spoken += said

    async def start(self, frame: StartFrame) -> None:
        await super().start(frame)
        await self.set_transport_ready(frame)
        self._running = self.create_task(self._run())

    async def stop(self, frame: EndFrame) -> None:
        if self._running is not None:
            await self.cancel_task(self._running)
        await super().stop(frame)

    async def _run(self) -> None:
        begun_s = time.monotonic()
        for number in itertools.count(1):
            await asyncio.sleep(begun_s + number * FRAME_S - time.monotonic())
            data, self._spoken = self._spoken[:FRAME_BYTES], self._spoken[FRAME_BYTES:]
            await self.push_audio_frame(InputAudioRawFrame(data.ljust(FRAME_BYTES, b"\0"), RATE, 1))


class Speaker(BaseOutputTransport):
    """Plays in real time."""

    def __init__(self) -> None:
        super().__init__(PARAMS)
        self.played_bytes = 0

    async def start(self, frame: StartFrame) -> None:
        await super().start(frame)
        await self.set_transport_ready(frame)

    async def write_audio_frame(self, frame: OutputAudioRawFrame) -> bool:
        await asyncio.sleep(len(frame.audio) / 2 / frame.sample_rate)
        self.played_bytes += len(frame.audio)
        return True


class Recorder(FrameProcessor):
    """Records what the speaker plays: the answers that have ended."""

    def __init__(self, speaker: Speaker) -> None:
        super().__init__()
        self._speaker = speaker
        self._is_playing, self._begun_bytes, self._num_interruptions = False, 0, 0
        self.answers: asyncio.Queue[dict[str, int]] = asyncio.Queue()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        match frame:
            case BotStartedSpeakingFrame():
                self._is_playing, self._begun_bytes, self._num_interruptions = True, self._speaker.played_bytes, 0
            case InterruptionFrame() if self._is_playing:
                self._num_interruptions += 1
            case BotStoppedSpeakingFrame() if self._is_playing:
                self._is_playing = False
                played = self._speaker.played_bytes - self._begun_bytes
                self.answers.put_nowait({"audio_bytes": played, "interruptions": self._num_interruptions})
        await self.push_frame(frame, direction)


async def main(url: str, said: bytes, num_turns: int) -> None:
    errors: list[str] = []
    logger.remove()
    logger.add(lambda message: errors.append(str(message)), level="WARNING")
    service = OpenAIRealtimeLLMService(api_key=KEY, base_url=f"{url.replace('http', 'ws', 1)}/v1/realtime")
    context = LLMContext()
    aggregators = LLMContextAggregatorPair(context, realtime_service_mode=True)
    microphone, speaker = PipecatMicrophone(), Speaker()
    recorder = Recorder(speaker)
    parts = [microphone, aggregators.user(), service, speaker, recorder, aggregators.assistant()]
    worker = PipelineWorker(
        Pipeline(parts), params=PipelineParams(audio_in_sample_rate=RATE, audio_out_sample_rate=RATE)
    )
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    running = asyncio.create_task(runner.run())
    microphone.speak(said)
    async with asyncio.timeout(TURN_TIMEOUT_S):
        while speaker.played_bytes < LISTENING_S * RATE * 2:
            await asyncio.sleep(FRAME_S)
    answers: list[dict[str, int]] = []
    for _ in range(num_turns - 1):
        microphone.speak(said)
        async with asyncio.timeout(TURN_TIMEOUT_S):
            answers.append(await recorder.answers.get())
            if answers[-1]["interruptions"]:  # by this turn, whose answer follows
                answers.append(await recorder.answers.get())
    await worker.queue_frame(EndFrame())
    await asyncio.wait_for(running, TURN_TIMEOUT_S)
    history = [(message["role"], message["content"]) for message in context.get_messages()]
    print(json.dumps({"answers": answers, "history": history, "errors": errors}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]).read_bytes(), int(sys.argv[3])))
