"""A TTS service for pipecat over the native protocol.

Tokens of the language model are sent as they arrive, audio is Opus. An interruption reports the played duration, and
the context holds the words that were played.

    pip install pipecat-ai aiohttp opuslib-next-bundled

    tts = VoicewireTTSService(url="ws://127.0.0.1:8765", voice="clara")
    pipeline = Pipeline([..., llm, tts, transport.output(), ...])

    python pipecat_tts.py ws://127.0.0.1:8765 "Hello there, how are you?" hello.wav

pipecat's own services for vendors work too (docs/guides/pipecat.md), but collect whole sentences, which takes 200 to
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
    InterruptionFrame,
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


class Playback:
    """Track the turn that plays and its position.

    The transport plays turns one after the other, in real time, while the bot speaks.
    """

    def __init__(self) -> None:
        # Turns in order, and whether they may be interrupted.
        self._turns: dict[Turn, bool] = {}
        # Played duration of these turns when the bot last stopped.
        self._played_s = 0.0
        self._since_s: float | None = None

    def add(self, turn: Turn, interruptible: bool = True) -> None:
        self._turns[turn] = interruptible

    def start(self, now_s: float) -> None:
        self._since_s = now_s if self._since_s is None else self._since_s

    def stop(self) -> None:
        """Record that all received audio was played; active turns wait for more."""
        if self._since_s is None:
            return
        self._turns = {turn: interruptible for turn, interruptible in self._turns.items() if not turn.over}
        self._played_s = sum(turn.sent_s for turn in self._turns)
        self._since_s = None

    def cut(self, now_s: float) -> tuple[Turn, float] | None:
        """End playback and return the turn that was playing with its played seconds.

        Returns ``None`` without a turn, or if it may not be interrupted.
        """
        left_s = self._played_s + (0.0 if self._since_s is None else now_s - self._since_s)
        for turn, interruptible in self._turns.items():
            if left_s < turn.sent_s or turn is next(reversed(self._turns)):
                if not interruptible:
                    return None
                self._turns, self._played_s, self._since_s = {}, 0.0, None
                return turn, min(left_s, turn.sent_s)
            left_s -= turn.sent_s
        return None


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
        """``settings`` are those of the native protocol (docs/reference/native-protocol.md)."""
        super().__init__(
            text_aggregation_mode=TextAggregationMode.TOKEN,
            push_text_frames=False,
            sample_rate=SAMPLE_RATE,
            settings=TTSSettings(model="voicewire", voice=voice, language=None),
            **kwargs,
        )
        self._client = Voicewire(url, api_key, **(settings or {}))
        # By context id, while audio arrives.
        self._turns: dict[str, Turn] = {}
        self._hearing: dict[str, asyncio.Task[None]] = {}
        # The remaining text of this context is dropped.
        self._failed_context: str | None = None
        self._playback = Playback()
        self._asking: asyncio.Task[None] | None = None
        # Heard text of the last interruption, some milliseconds after it; ``None`` until then, or without speech. The
        # event handler ``on_interrupted_reply`` receives it, too.
        self.last_heard: str | None = None
        self._register_event_handler("on_interrupted_reply")

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
        for task in (*self._hearing.values(), *filter(None, [self._asking])):
            await self.cancel_task(task)
        await self._client.aclose()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        now_s = asyncio.get_running_loop().time()
        if isinstance(frame, BotStartedSpeakingFrame):
            self._playback.start(now_s)
        elif isinstance(frame, BotStoppedSpeakingFrame):
            self._playback.stop()
        elif isinstance(frame, InterruptionFrame):
            await self._ask_what_was_heard(now_s)
        await super().process_frame(frame, direction)

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        """Send a delta of the turn ``context_id``."""
        if context_id == self._failed_context:
            return
        try:
            if context_id not in self._turns:
                await self.create_audio_context(context_id)
                await self.start_ttfb_metrics()
                yield TTSStartedFrame(context_id=context_id)
                await self._begin(context_id)
            await self._turns[context_id].push(text)
            await self.start_tts_usage_metrics(text)
            yield None
        except VoicewireError as error:
            self._failed_context = context_id
            yield ErrorFrame(error=str(error), exception=error)
            await self._close(context_id)

    async def _begin(self, context_id: str) -> None:
        voice = {"voice": self._settings.voice} if self._settings.voice else {}
        turn = self._turns[context_id] = await self._client.begin(**voice)
        context = self._tts_contexts.get(context_id)
        self._playback.add(turn, context is None or context.interruptible)
        self._hearing[context_id] = self.create_task(self._hear(turn, context_id))

    async def flush_audio(self, context_id: str | None = None) -> None:
        """Mark the text of the turn as complete."""
        turn = self._turns.get(context_id or self.get_active_audio_context_id() or "")
        if turn is not None:
            await turn.end()

    async def on_audio_context_interrupted(self, context_id: str) -> None:
        """Stop the turn without waiting for the server; the heard text is queried concurrently."""
        turn, task = self._turns.pop(context_id, None), self._hearing.pop(context_id, None)
        if turn is not None:
            await turn.drop()
        if task is not None:
            await self.cancel_task(task)
        await super().on_audio_context_interrupted(context_id)

    async def _ask_what_was_heard(self, now_s: float) -> None:
        self.last_heard = None
        if (cut := self._playback.cut(now_s)) is None:
            return
        if self._asking is not None:
            await self.cancel_task(self._asking)
        self._asking = self.create_task(self._ask(*cut))

    async def _ask(self, turn: Turn, played_s: float) -> None:
        self.last_heard = await turn.cancel(played_s)
        await self._call_event_handler("on_interrupted_reply", self.last_heard)

    async def _hear(self, turn: Turn, context_id: str) -> None:
        try:
            async for item in turn:
                match item:
                    case Sound(pcm) if pcm:
                        await self.stop_ttfb_metrics()
                        frame = TTSAudioRawFrame(pcm, turn.sample_rate, 1, context_id=context_id)
                        await self.append_to_audio_context(context_id, frame)
                    case Word():
                        await self.add_word_timestamps([(item.text, item.start_s)], context_id)
        except VoicewireError as error:
            self._failed_context = context_id
            await self.push_error(error_msg=str(error), exception=error)
        self._turns.pop(context_id, None)
        self._hearing.pop(context_id, None)
        await self._close(context_id)

    async def _close(self, context_id: str) -> None:
        if self.audio_context_available(context_id):
            await self.append_to_audio_context(context_id, TTSStoppedFrame(context_id=context_id))
            await self.remove_audio_context(context_id)


class Recorder(FrameProcessor):
    """Replace a transport: record the audio and print the words."""

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
