"""pipecat speaks through this server: ``pipecat_client.py SERVICE HTTP_URL MODE`` prints what came as JSON.

Modes: ``sentence`` and ``token`` (two turns, spoken by sentences or token by token), ``interrupt`` (the first turn is
interrupted, the second is heard whole), ``again`` (the first turn is said until the server has room), ``forms`` and
``forms_token`` (the first turn has a pause and phonemes in Rime's forms). Of our own plug-in, before a turn: ``tail``
(a reply that came whole is interrupted while it is heard), ``second`` (the second of two in a row), ``early`` (replies
are interrupted before they sound), ``lost`` (the line breaks). Runs in an environment of its own that
has pipecat.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
from client_turns import (
    KEY,
    LONG,
    STORY,
    STORY_S,
    TURN_TIMEOUT_S,
    TURNS,
    check_pause,
    is_enough,
    keep_cut,
    played,
    with_rime_forms,
)
from loguru import logger
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
    TTSStoppedFrame,
    TTSTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.tts_service import TextAggregationMode
from pipecat.workers.runner import WorkerRunner

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))


REFUSED_TIMEOUT_S, PAUSE_S = 5.0, 3.0


class Sink(FrameProcessor):
    def __init__(self, plays: bool = False) -> None:
        """``plays``: tells the service when it begins to, as a transport does."""
        super().__init__()
        self.plays = plays
        self.pcm = b""
        self.first_turn_bytes = 0
        self.rate = 0
        self.words: list[tuple[str, int | None]] = []
        self.errors: list[str] = []
        self.stopped = asyncio.Event()
        self.sounded = asyncio.Event()

    def begin_turn(self) -> None:
        self.pcm, self.words = b"", []
        self.stopped.clear()
        self.sounded.clear()

    async def has_enough(self) -> None:
        """To be interrupted."""
        async with asyncio.timeout(TURN_TIMEOUT_S):
            while not is_enough(self.pcm, self.rate):
                await asyncio.sleep(0.01)

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        match frame:
            case TTSAudioRawFrame():
                self.pcm += frame.audio
                self.rate = frame.sample_rate
                if self.plays and not self.sounded.is_set():
                    await self.push_frame(BotStartedSpeakingFrame(), FrameDirection.UPSTREAM)
                self.sounded.set()
            case TTSTextFrame():
                self.words.append((frame.text, frame.pts))
            case TTSStoppedFrame():
                self.first_turn_bytes = self.first_turn_bytes or len(self.pcm)
                self.stopped.set()
            case ErrorFrame():
                self.errors.append(frame.error)
        await self.push_frame(frame, direction)


def services(url: str, session: aiohttp.ClientSession, mode: TextAggregationMode) -> dict[str, Callable[[], Any]]:
    from pipecat.services.cartesia.tts import CartesiaHttpTTSService, CartesiaTTSService
    from pipecat.services.deepgram.flux.tts import DeepgramFluxTTSService
    from pipecat.services.deepgram.tts import DeepgramHttpTTSService, DeepgramTTSService
    from pipecat.services.elevenlabs.dialogue.tts import ElevenLabsDialogueTTSService
    from pipecat.services.elevenlabs.tts import ElevenLabsHttpTTSService, ElevenLabsTTSService
    from pipecat.services.inworld.tts import InworldTTSService
    from pipecat.services.openai.tts import OpenAITTSService
    from pipecat.services.rime.tts import RimeTTSService
    from pipecat.services.rime.tts_v1 import RimeV1TTSService
    from pipecat_tts import VoicewireTTSService  # examples/pipecat_tts.py

    socket = url.replace("http", "ws", 1)
    by = {"text_aggregation_mode": mode}
    token = mode is TextAggregationMode.TOKEN
    return {
        "elevenlabs": lambda: ElevenLabsTTSService(
            api_key=KEY, url=socket, settings=ElevenLabsTTSService.Settings(voice="zoe"), auto_mode=not token, **by
        ),
        "elevenlabs_dialogue": lambda: ElevenLabsDialogueTTSService(
            api_key=KEY, url=socket, settings=ElevenLabsDialogueTTSService.Settings(voice="zoe"), **by
        ),
        "elevenlabs_http": lambda: ElevenLabsHttpTTSService(
            api_key=KEY,
            base_url=url,
            aiohttp_session=session,
            settings=ElevenLabsHttpTTSService.Settings(voice="zoe"),
        ),
        "cartesia": lambda: CartesiaTTSService(
            api_key=KEY, url=f"{socket}/tts/websocket", settings=CartesiaTTSService.Settings(voice="zoe"), **by
        ),
        "cartesia_http": lambda: CartesiaHttpTTSService(
            api_key=KEY, base_url=url, settings=CartesiaHttpTTSService.Settings(voice="zoe")
        ),
        "deepgram": lambda: DeepgramTTSService(api_key=KEY, base_url=socket, **by),
        "deepgram_http": lambda: DeepgramHttpTTSService(api_key=KEY, base_url=url, aiohttp_session=session),
        "native": lambda: VoicewireTTSService(url=url, api_key=KEY),
        "openai": lambda: OpenAITTSService(api_key=KEY, base_url=f"{url}/v1"),
        "rime": lambda: RimeTTSService(
            api_key=KEY, url=f"{socket}/ws3", settings=RimeTTSService.Settings(voice="zoe"), **by
        ),
        "rime_mist": lambda: RimeTTSService(
            api_key=KEY,
            url=f"{socket}/ws3",
            settings=RimeTTSService.Settings(
                model="mistv2", voice="zoe", pauseBetweenBrackets=True, phonemizeBetweenBrackets=True
            ),
            **by,
        ),
        "rime_v1": lambda: RimeV1TTSService(
            api_key=KEY,
            websocket_url=f"{socket}/ws",
            settings=RimeV1TTSService.Settings(model="coda", voice="zoe"),
            **by,
        ),
        "rime_v1_json": lambda: RimeV1TTSService(
            api_key=KEY,
            websocket_url=f"{socket}/ws",
            websocket_protocol="json",
            settings=RimeV1TTSService.Settings(model="coda", voice="zoe"),
            **by,
        ),
        "rime_v1_mist": lambda: RimeV1TTSService(
            api_key=KEY,
            websocket_url=f"{socket}/ws",
            settings=RimeV1TTSService.Settings(
                model="mistv3", voice="zoe", pause_between_brackets=True, phonemize_between_brackets=True
            ),
            **by,
        ),
        "inworld": lambda: InworldTTSService(api_key=KEY, url=f"{socket}/tts/v1/voice:streamBidirectional", **by),
        "deepgram_flux": lambda: DeepgramFluxTTSService(api_key=KEY, url=f"{socket}/v2/speak", **by),
    }


async def talk(service: Any, mode: str) -> dict[str, object]:
    sink = Sink(plays=hasattr(service, "last_heard"))
    worker = PipelineWorker(Pipeline([service, sink]), params=PipelineParams(audio_out_sample_rate=24_000))
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    running = asyncio.create_task(runner.run())
    turns = []
    if mode == "again":
        await say_until_it_sounds(worker, sink)
    if mode in ("interrupt", "tail"):
        await interrupt(worker, sink, service, LONG if mode == "interrupt" else TURNS[0])
    if mode == "interrupt":
        keep_cut(sink.pcm, sink.rate)
    if mode == "second":
        await interrupt_the_second(worker, sink, service)
    if mode == "early":
        await interrupt_early(worker)
    if mode == "lost":
        await lose_the_line(worker, sink, service)
    for text in TURNS[1:] if mode in ("interrupt", "tail", "second", "early", "lost") else TURNS:
        sink.begin_turn()
        has_forms = mode.startswith("forms") and text == TURNS[0]
        await say(worker, with_rime_forms(text, pause_tag(service)) if has_forms else text)
        await asyncio.wait_for(sink.stopped.wait(), TURN_TIMEOUT_S)
        await asyncio.sleep(0.1)
        if has_forms:
            check_pause(sink.pcm, sink.rate)
        turns.append(played(text, sink.pcm, sink.rate, sink.words))
    await worker.queue_frame(EndFrame())
    await asyncio.wait_for(running, TURN_TIMEOUT_S)
    return {"turns": turns, "errors": sink.errors}


def pause_tag(service: Any) -> str:
    """A second, as the service writes it."""
    return type(service).PAUSE_TAG(1.0) if hasattr(service, "PAUSE_TAG") else "<1000>"


async def interrupt(worker: PipelineWorker, sink: Sink, service: Any, text: str) -> None:
    """After it sounded for a second; a short text has come whole by then. A second interruption finds nothing."""
    await say(worker, text)
    await (sink.has_enough() if text == LONG else asyncio.wait_for(sink.sounded.wait(), TURN_TIMEOUT_S))
    if sink.plays:
        await asyncio.sleep(1.0)
    await worker.queue_frame(InterruptionFrame())
    await asyncio.sleep(0.3)
    if sink.plays:
        assert service.last_heard, service.last_heard
        assert text.startswith(service.last_heard), service.last_heard
        assert len(service.last_heard) < len(text) * 3 / 4, service.last_heard
        await sink.push_frame(BotStoppedSpeakingFrame(), FrameDirection.UPSTREAM)
        await worker.queue_frame(InterruptionFrame())
        await asyncio.sleep(0.1)
        assert service.last_heard is None, service.last_heard


async def interrupt_the_second(worker: PipelineWorker, sink: Sink, service: Any) -> None:
    """Of two replies in a row, heard without a pause."""
    for text in TURNS:
        await say(worker, text)
    await asyncio.wait_for(sink.sounded.wait(), TURN_TIMEOUT_S)
    began_s = asyncio.get_running_loop().time()
    await asyncio.wait_for(sink.stopped.wait(), TURN_TIMEOUT_S)
    first_s = sink.first_turn_bytes / 2 / sink.rate
    await asyncio.sleep(began_s + first_s + 1.0 - asyncio.get_running_loop().time())
    await worker.queue_frame(InterruptionFrame())
    await asyncio.sleep(0.3)
    assert service.last_heard, service.last_heard
    assert TURNS[1].startswith(service.last_heard), service.last_heard
    await sink.push_frame(BotStoppedSpeakingFrame(), FrameDirection.UPSTREAM)


async def interrupt_early(worker: PipelineWorker) -> None:
    """Before anything sounds, sooner and later."""
    for num_steps in range(0, 60, 3):
        await say(worker, LONG)
        for _ in range(num_steps):
            await asyncio.sleep(0)
        await worker.queue_frame(InterruptionFrame())
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.3)


async def lose_the_line(worker: PipelineWorker, sink: Sink, service: Any) -> None:
    """Where the session cannot be resumed, the rest of the reply is spoken on the next line, with later text."""
    head, tail = STORY[:100], STORY[100:]
    await worker.queue_frames([LLMFullResponseStartFrame(), LLMTextFrame(head)])
    await asyncio.wait_for(sink.sounded.wait(), TURN_TIMEOUT_S)
    service._client._token = "forged"
    service._client._socket._response.connection.transport.abort()
    await worker.queue_frames([LLMTextFrame(tail), LLMFullResponseEndFrame()])
    await asyncio.wait_for(sink.stopped.wait(), TURN_TIMEOUT_S)
    duration_s = len(sink.pcm) / 2 / sink.rate
    assert abs(duration_s - STORY_S) < 0.2, duration_s  # segments are whole frames


async def say_until_it_sounds(worker: PipelineWorker, sink: Sink) -> None:
    """A turn that finds no room is lost; the next one tries anew. After three the service gives itself up."""
    for _ in range(3):
        sink.begin_turn()
        await say(worker, TURNS[0])
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(sink.stopped.wait(), REFUSED_TIMEOUT_S)
        if sink.pcm:
            return
        await asyncio.sleep(PAUSE_S)
    await worker.cancel()
    raise TimeoutError("refused for good")


async def say(worker: PipelineWorker, text: str) -> None:
    tokens = text.split(" ")
    deltas = [token if at == 0 else f" {token}" for at, token in enumerate(tokens)]
    frames = [LLMFullResponseStartFrame(), *map(LLMTextFrame, deltas), LLMFullResponseEndFrame()]
    await worker.queue_frames(frames)


async def converse(url: str) -> dict[str, object]:
    """OpenAI's realtime model: what the user writes is what it speaks."""
    from pipecat.frames.frames import LLMContextFrame
    from pipecat.processors.aggregators.llm_context import LLMContext
    from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService

    turns, errors = [], []
    for text in TURNS:
        service = OpenAIRealtimeLLMService(api_key=KEY, base_url=f"{url.replace('http', 'ws', 1)}/v1/realtime")
        sink = Sink()
        worker = PipelineWorker(Pipeline([service, sink]), params=PipelineParams(audio_out_sample_rate=24_000))
        runner = WorkerRunner(handle_sigint=False)
        await runner.add_workers(worker)
        running = asyncio.create_task(runner.run())
        await worker.queue_frame(LLMContextFrame(LLMContext([{"role": "user", "content": text}])))
        await asyncio.wait_for(sink.stopped.wait(), TURN_TIMEOUT_S)
        turns.append(played(text, sink.pcm, sink.rate, sink.words))
        errors += sink.errors
        await worker.queue_frame(EndFrame())
        await asyncio.wait_for(running, TURN_TIMEOUT_S)
    return {"turns": turns, "errors": errors}


async def main() -> None:
    name, url, mode = sys.argv[1:4]
    logger.remove()
    logger.add(sys.stderr, level="WARNING")
    if name == "realtime":
        print(json.dumps(await converse(url)))
        return
    aggregation = TextAggregationMode.TOKEN if mode in ("token", "forms_token") else TextAggregationMode.SENTENCE
    async with aiohttp.ClientSession() as session:
        print(json.dumps(await talk(services(url, session, aggregation)[name](), mode)))


if __name__ == "__main__":
    asyncio.run(main())
