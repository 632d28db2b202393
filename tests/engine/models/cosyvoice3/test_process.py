"""The family in a process of its own: voices, live text and speech pass the socket as they are."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

from engine.api import (
    ClonedVoice,
    FinishReason,
    ReferenceAudio,
    RequestFinished,
    SamplingParams,
    SpeechChunk,
    SpeechEngine,
    SpeechRequest,
    TextLayout,
)
from engine.child import EngineProcess
from engine.client import EngineClient
from engine.config import EngineConfig
from engine.launch import create_engine
from tests.fakes import tiny_onnx
from tests.fakes.cosyvoice3_checkpoint import write_cosyvoice3
from tests.sessions.audio.signals import speech_like

TEXT = "Hello world, this is it, and there is more to come."
RECORDING = ReferenceAudio(pcm=speech_like(48_000, 24_000, seed=2).astype(np.float32).tobytes(), transcript="hello you")


async def speak(engine: SpeechEngine, voice: ClonedVoice, layout: TextLayout) -> tuple[np.ndarray, RequestFinished]:
    """Live text comes word by word."""
    is_live = layout is TextLayout.STREAMING
    sampling = SamplingParams(seed=7, min_new_tokens=20)
    spec = SpeechRequest(request_id="r", voice=voice, layout=layout, max_frames=20, sampling=sampling)
    stream = engine.submit(spec)
    for word in TEXT.split(" ") if is_live else [TEXT]:
        stream.push_text(f"{word} ")
    stream.end_input()
    chunks, ends = list[np.ndarray](), list[RequestFinished]()
    async for event in stream:
        if isinstance(event, SpeechChunk):
            chunks.append(event.pcm)
        elif isinstance(event, RequestFinished):
            ends.append(event)
    await stream.released()
    (end,) = ends
    return np.concatenate(chunks), end


async def say_all(engine: SpeechEngine) -> tuple[ClonedVoice, list[np.ndarray]]:
    """A voice that the engine encodes, and what it says whole, live, and by the sound of the recording alone."""
    voice = await engine.encode_voice(RECORDING)
    sound_alone = ClonedVoice(embedding=voice.embedding, codes=voice.codes, num_codebooks=1, mel=voice.mel)
    wishes = [(voice, TextLayout.FULL), (voice, TextLayout.STREAMING), (sound_alone, TextLayout.FULL)]
    said = [await speak(engine, *wish) for wish in wishes]
    for pcm, end in said:
        assert end.reason is FinishReason.LENGTH
        assert (len(pcm), end.num_frames) == (960 * 20, 20)
    return voice, [pcm for pcm, _ in said]


async def test_process_and_thread_give_equal_results(tmp_path: Path) -> None:
    folder = write_cosyvoice3(tmp_path / "checkpoint")
    tiny_onnx.write_encoders(folder)
    local = create_engine(folder, device="cpu", process=False, lazy_graph_capture=True)
    process = EngineProcess(folder, EngineConfig(lazy_graph_capture=True), "cpu", "auto", is_embedded=False)
    remote = EngineClient(process)
    await asyncio.gather(local.start(), remote.start())
    try:
        assert remote.info == local.info
        (voice, here), (heard, there) = await say_all(local), await say_all(remote)
    finally:
        await asyncio.gather(local.aclose(), remote.aclose())
    assert (heard.codes, heard.transcript) == (voice.codes, "hello you")
    np.testing.assert_allclose(np.frombuffer(heard.mel, np.float32), np.frombuffer(voice.mel, np.float32), atol=1e-5)
    for pcm, other in zip(here, there, strict=True):
        np.testing.assert_allclose(pcm, other, atol=1e-3)  # which blocks go together is a matter of timing
    assert not np.allclose(here[0], here[2], atol=1e-2), "the transcript is told"
