"""voicewire in pipecat: tokens of the language model go to the server as they come, Opus comes back, an interruption
tells the server what was played, and words reach the context when they are heard.

    pip install pipecat-ai aiohttp opuslib-next-bundled

    tts = VoicewireTTSService(url="ws://127.0.0.1:8765", voice="clara")
    pipeline = Pipeline([..., llm, tts, transport.output(), ...])

    python pipecat_tts.py ws://127.0.0.1:8765 "Hello there, how are you?" hello.wav

pipecat's own vendor services work too (docs/integrations/pipecat.md); they gather sentences first, which costs 200 to
300 ms.
"""

from __future__ import annotations

import asyncio
import os
import sys
import wave
from collections.abc import AsyncGenerator
from typing import Any

from native import Sound, Turn, Voicewire, VoicewireError, Word
from pipecat.frames.frames import (
    BotStartedSpeakingFrame,
    BotStoppedSpeakingFrame,
    EndFrame,
    ErrorFrame,
    Frame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
    TTSTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor, FrameProcessorSetup
from pipecat.services.settings import TTSSettings
from pipecat.services.tts_service import TextAggregationMode, TTSService
from pipecat.workers.runner import WorkerRunner

SAMPLE_RATE = 24_000


class VoicewireTTSService(TTSService):
    def __init__(
        self,
        *,
        url: str = "ws://127.0.0.1:8765",
        api_key: str | None = None,
        voice: str | None = None,
        settings: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """``settings`` are those of the native wire (docs/wire-protocol.md)."""
        super().__init__(
            text_aggregation_mode=TextAggregationMode.TOKEN,
            push_text_frames=False,
            sample_rate=SAMPLE_RATE,
            settings=TTSSettings(model="voicewire", voice=voice, language=None),
            **kwargs,
        )
        named = {"voice": voice} if voice else {}
        self._client = Voicewire(url, api_key, **named, **(settings or {}))
        self._turns: dict[str, Turn] = {}
        self._hearing: dict[str, asyncio.Task[None]] = {}
        self._bot_began_s: float | None = None
        self.last_heard: str | None = None
        """After an interruption: the text up to the last word that was heard."""

    def can_generate_metrics(self) -> bool:
        return True

    async def setup(self, setup: FrameProcessorSetup) -> None:
        await super().setup(setup)
        try:
            await self._client.connect()
        except VoicewireError as error:
            await self.push_error(error_msg=str(error), exception=error)

    async def cleanup(self) -> None:
        await super().cleanup()
        for task in list(self._hearing.values()):
            await self.cancel_task(task)
        await self._client.aclose()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        if isinstance(frame, BotStartedSpeakingFrame):
            self._bot_began_s = asyncio.get_running_loop().time()
        elif isinstance(frame, BotStoppedSpeakingFrame):
            self._bot_began_s = None
        await super().process_frame(frame, direction)

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        """A piece of text of the turn ``context_id``."""
        try:
            if context_id not in self._turns:
                await self.create_audio_context(context_id)
                await self.start_ttfb_metrics()
                yield TTSStartedFrame(context_id=context_id)
                turn = self._turns[context_id] = await self._client.begin()
                self._hearing[context_id] = self.create_task(self._hear(turn, context_id))
            await self._turns[context_id].push(text)
            await self.start_tts_usage_metrics(text)
            yield None
        except VoicewireError as error:
            yield ErrorFrame(error=str(error))
            await self._close(context_id)

    async def flush_audio(self, context_id: str | None = None) -> None:
        """The turn has all its text."""
        turn = self._turns.get(context_id or self.get_active_audio_context_id() or "")
        if turn is not None:
            await turn.end()

    async def on_audio_context_interrupted(self, context_id: str) -> None:
        turn, task = self._turns.pop(context_id, None), self._hearing.pop(context_id, None)
        if turn is not None:
            self.last_heard = await turn.cancel(self._played_s(turn))
        if task is not None:
            await self.cancel_task(task)
        await super().on_audio_context_interrupted(context_id)

    def _played_s(self, turn: Turn) -> float:
        """What the transport has played of it: it plays in real time from when the bot began to speak."""
        if self._bot_began_s is None:
            return 0.0
        return min(asyncio.get_running_loop().time() - self._bot_began_s, turn.sent_s)

    async def _hear(self, turn: Turn, context_id: str) -> None:
        try:
            async for told in turn:
                match told:
                    case Sound(pcm) if pcm:
                        await self.stop_ttfb_metrics()
                        frame = TTSAudioRawFrame(pcm, turn.sample_rate, 1, context_id=context_id)
                        await self.append_to_audio_context(context_id, frame)
                    case Word():
                        await self.add_word_timestamps([(told.text, told.start_s)], context_id)
        except VoicewireError as error:
            await self.push_error(error_msg=str(error), exception=error)
        self._turns.pop(context_id, None)
        self._hearing.pop(context_id, None)
        await self._close(context_id)

    async def _close(self, context_id: str) -> None:
        if self.audio_context_available(context_id):
            await self.append_to_audio_context(context_id, TTSStoppedFrame(context_id=context_id))
            await self.remove_audio_context(context_id)


class Recorder(FrameProcessor):
    """In place of a transport."""

    def __init__(self) -> None:
        super().__init__()
        self.pcm = b""

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        match frame:
            case TTSAudioRawFrame():
                self.pcm += frame.audio
            case TTSTextFrame():
                print(f"{(frame.pts or 0) / 1e9:6.2f}  {frame.text}")
        await self.push_frame(frame, direction)


async def main() -> None:
    url, text, path = sys.argv[1:4]
    service = VoicewireTTSService(url=url, api_key=os.environ.get("VOICEWIRE_API_KEY"))
    recorder = Recorder()
    worker = PipelineWorker(Pipeline([service, recorder]), params=PipelineParams(audio_out_sample_rate=SAMPLE_RATE))
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    tokens = [LLMTextFrame(token + " ") for token in text.split(" ")]
    await worker.queue_frames([LLMFullResponseStartFrame(), *tokens, LLMFullResponseEndFrame(), EndFrame()])
    await runner.run()
    with wave.open(path, "wb") as file:
        file.setparams((1, 2, SAMPLE_RATE, 0, "NONE", ""))
        file.writeframes(recorder.pcm)


if __name__ == "__main__":
    asyncio.run(main())
