"""A recording goes in at the engine's door, and speech in its voice comes out, in a thread and in a process alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from engine.address import EngineAddress
from engine.api import (
    ClonedVoice,
    EngineDead,
    FinishReason,
    InvalidRequest,
    ReferenceAudio,
    SamplingParams,
    SpeechEngine,
    SpeechRequest,
    TextLayout,
)
from engine.child import EngineProcess
from engine.client import EngineClient
from engine.config import EngineConfig
from engine.endpoint import EngineSocket
from engine.launch import create_engine
from engine.load import load_engine
from engine.models.qwen3_tts.config import read_config
from engine.models.qwen3_tts.load import load_codec
from tests.engine.engine_harness import EngineHarness
from tests.engine.served_engine import running_process
from tests.engine.stream_recorder import listen
from tests.fakes.checkpoints import TINY, write_checkpoint

pytestmark = pytest.mark.usefixtures("quick_engines")

RATE = 24_000
TRANSCRIPT = "the dog"
GREEDY = SamplingParams(do_sample=False, predictor_do_sample=False, min_new_tokens=6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("base"), TINY, task="base")


@pytest.fixture(scope="module")
def listening(folder: Path) -> Iterator[EngineAddress]:
    """One engine process for the tests that leave it alive."""
    config = EngineConfig(kv_memory_mb=8, lazy_graph_capture=True)
    with running_process(EngineProcess(folder, config, "cpu", "auto", is_embedded=False)) as address:
        yield address


@pytest.fixture(params=["thread", "process"])
async def engine(request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[SpeechEngine]:
    if request.param == "process":
        engine: SpeechEngine = EngineClient(EngineSocket(request.getfixturevalue("listening")))
    else:
        engine = create_engine(folder, device="cpu", process=False, kv_memory_mb=8, lazy_graph_capture=True)
    await engine.start()
    yield engine
    await engine.aclose()


def recording(seconds: float = 1.2, transcript: str = TRANSCRIPT) -> ReferenceAudio:
    sound = 0.3 * np.random.default_rng(5).standard_normal(round(seconds * RATE)).clip(-3, 3) / 3
    return ReferenceAudio(pcm=sound.astype(np.float32).tobytes(), transcript=transcript)


def request(voice: ClonedVoice, **fields: object) -> SpeechRequest:
    spec = dict(text="Hello, world!", text_closed=True, max_frames=6, sampling=GREEDY)
    return SpeechRequest(request_id="r", voice=voice, **(spec | fields))  # type: ignore[arg-type]


async def test_a_recording_becomes_a_voice_that_speaks(engine: SpeechEngine) -> None:
    info = engine.info
    assert (info.task, info.voices, info.can_clone, info.can_encode) == ("base", (), True, True)
    in_context, by_vector = await asyncio.gather(
        engine.encode_voice(recording()), engine.encode_voice(recording(transcript=""))
    )
    assert len(in_context.embedding) == 4 * info.embedding_size
    assert len(in_context.codes) == 15 * info.num_codebooks * 2
    assert by_vector == msgspec.structs.replace(in_context, codes=b"", num_codebooks=0, transcript="")
    spoken = [await listen(engine.submit(request(voice))) for voice in (in_context, by_vector, in_context)]
    assert [heard.end.reason for heard in spoken] == [FinishReason.LENGTH] * 3
    assert all(heard.pcm.shape == (6 * 1920,) for heard in spoken)
    np.testing.assert_allclose(spoken[0].pcm, spoken[2].pcm, atol=2e-5)
    assert np.abs(spoken[0].pcm - spoken[1].pcm).max() > 0.01


async def test_bad_recordings_are_refused_and_the_next_one_is_not(engine: SpeechEngine) -> None:
    for sample in (recording(0.2), recording(31), ReferenceAudio(pcm=np.full(RATE, np.nan, np.float32).tobytes())):
        with pytest.raises(InvalidRequest) as refused:
            await engine.encode_voice(sample)
        assert refused.value.param == "audio"
    assert await engine.encode_voice(recording())


async def test_live_text_waits_for_the_recording_and_reports_it(engine: SpeechEngine) -> None:
    voice = await engine.encode_voice(recording())
    stream = engine.submit(request(voice, text="", text_closed=False))
    for letter in "a quick brown fox jumps over all those lazy dogs of the house":
        stream.push_text(letter)
    stream.end_input()
    end = (await listen(stream)).end
    assert end.reason is FinishReason.LENGTH
    assert 1 < end.num_prompt_tokens < end.num_text_tokens
    assert end.prompt_wait_ms is not None
    assert end.first_audio_ms is not None
    assert 0 <= end.prompt_wait_ms <= end.first_audio_ms


async def test_a_voice_is_encoded_while_others_speak(engine: SpeechEngine) -> None:
    voice = await engine.encode_voice(recording(transcript=""))
    speaking = asyncio.create_task(listen(engine.submit(request(voice, max_frames=20))))
    assert await engine.encode_voice(recording(3)) != voice
    assert (await speaking).end.reason in (FinishReason.LENGTH, FinishReason.STOP)


async def test_without_encoders_voices_must_come_encoded(folder: Path) -> None:
    engine = create_engine(
        folder, device="cpu", process=False, kv_memory_mb=8, lazy_graph_capture=True, voice_encoders=False
    )
    await engine.start()
    try:
        assert (engine.info.can_clone, engine.info.can_encode) == (True, False)
        with pytest.raises(InvalidRequest, match="cannot listen"):
            await engine.encode_voice(recording())
        voice = ClonedVoice(embedding=np.ones(engine.info.embedding_size, np.float32).tobytes())
        assert (await listen(engine.submit(request(voice)))).end.reason is FinishReason.LENGTH
    finally:
        await engine.aclose()


async def test_dead_engine_process_fails_pending_recordings(folder: Path) -> None:
    engine = create_engine(folder, device="cpu", process=True, kv_memory_mb=8, lazy_graph_capture=True)
    assert isinstance(engine, EngineClient)
    await engine.start()
    try:
        waiting = asyncio.create_task(engine.encode_voice(recording(30)))
        await asyncio.sleep(0)
        process = engine._endpoint
        assert isinstance(process, EngineProcess)
        assert process._process is not None
        process._process.kill()
        with pytest.raises(EngineDead):
            await waiting
    finally:
        await engine.aclose()


# -- in the engine itself ------------------------------------------------------------------------------------------


def bench_of(folder: Path, **settings: object) -> EngineHarness:
    config = EngineConfig(
        **(dict(kv_memory_mb=8, max_running_requests=4, max_batch_size=4, lazy_graph_capture=True) | settings)
    )  # type: ignore[arg-type]
    return EngineHarness.from_checkpoint(load_engine(folder, config, "cpu", "float32", is_embedded=False))


def voice_of(num_frames: int, transcript: str = TRANSCRIPT) -> ClonedVoice:
    codes = (np.arange(num_frames * TINY["books"]) * 7 % TINY["codes"]).astype(np.int16)
    embedding = np.linspace(-1, 1, TINY["talker"]["hidden"], dtype=np.float32)
    return ClonedVoice(
        embedding=embedding.tobytes(), codes=codes.tobytes(), num_codebooks=TINY["books"], transcript=transcript
    )


@pytest.mark.parametrize(
    ("schedule", "frames"),
    [((1, 2, 4, 8), [1, 2, 4, 8, 8, 2]), ((8,), [8, 8, 8, 1]), ((1,), [1] * 25), ((2, 1, 4), [2, 1, 4, 4, 4, 4, 4, 2])],
)
def test_chunks_follow_the_schedule_of_the_request(folder: Path, schedule: tuple[int, ...], frames: list[int]) -> None:
    bench = bench_of(folder)
    sampling = SamplingParams(seed=3, min_new_tokens=25)
    spec = dict(text="a quick brown fox", text_closed=True, max_frames=25, sampling=sampling)
    epoch = bench.submit(voice=voice_of(5), chunk_frames=schedule, **spec)
    bench.run()
    bench.check_idle()
    sounds = [chunk for chunk in bench.heard[epoch].chunks if len(chunk.pcm)]
    assert sum(len(chunk.pcm) for chunk in sounds) == 25 * 1920
    tail = [1920 * n for n in frames]
    assert [len(chunk.pcm) for chunk in sounds][: len(frames) - 1] == tail[:-1]


def test_schedule_delivers_what_a_row_at_its_lead_made(folder: Path) -> None:
    bench = bench_of(folder)
    sampling = SamplingParams(seed=3, min_new_tokens=20)
    spec = dict(text="a quick brown fox", text_closed=True, max_frames=20, sampling=sampling, lead_ms=200)
    epoch = bench.submit(voice=voice_of(5), chunk_frames=(8,), **spec)
    bench.run()
    bench.check_idle()
    assert len(bench.heard[epoch].pcm) == 20 * 1920


@pytest.mark.parametrize("layout", [TextLayout.STREAMING, TextLayout.FULL])
def test_cloned_row_that_lost_its_blocks_speaks_the_same(folder: Path, layout: TextLayout) -> None:
    """The recording, too, is computed again after a preemption; its decoder's state is kept."""
    sampling = SamplingParams(seed=11, min_new_tokens=40)
    spec = dict(text="a quick brown fox", text_closed=True, max_frames=40, sampling=sampling, layout=layout)
    spoken = []
    for num_blocks in (200, 7):
        bench = bench_of(folder, num_blocks=num_blocks, watermark_blocks=0, min_frame_cap=8, frames_per_text_token=5)
        epochs = [bench.submit(voice=voice_of(9), **spec) for _ in range(3)]
        bench.run()
        bench.check_idle()
        spoken.append([bench.heard[epoch].pcm for epoch in epochs])
        assert (bench.engine.scheduler.num_preemptions > 0) == (num_blocks == 7)
    for ample, scarce in zip(*spoken, strict=True):
        np.testing.assert_allclose(ample, scarce, atol=2e-5)


def test_streams_of_a_voice_share_prefix_and_primed_decoder(folder: Path) -> None:
    bench = bench_of(folder)
    stage, before = bench.engine.stage, len(bench.engine.prefixes)
    for _ in range(3):
        bench.submit(voice=voice_of(9), text="hello", text_closed=True, max_frames=3)
        bench.run()
    assert len(stage.codec.references) == 1  # type: ignore[attr-defined]
    assert len(bench.engine.prefixes) == before + 1


def test_decoder_continues_the_recording(folder: Path) -> None:
    """As decoded in one piece, recording and speech."""
    bench, voice = bench_of(folder), voice_of(9)
    epoch = bench.submit(voice=voice, text="hello there", text_closed=True, max_frames=6, sampling=GREEDY)
    bench.run()
    heard = bench.heard[epoch]
    spoken = b"".join(chunk.codes for chunk in heard.chunks)
    codes = np.frombuffer(voice.codes + spoken, np.int16).reshape(-1, TINY["books"]).astype(np.int64)
    codec = load_codec(folder, read_config(folder), torch.float32, torch.device("cpu"))
    whole = codec(torch.from_numpy(codes).t()[None])[0].numpy()
    assert len(heard.pcm) == 6 * 1920
    np.testing.assert_allclose(heard.pcm, whole[9 * 1920 :][: len(heard.pcm)], atol=1e-3)


async def test_queued_recordings_end_when_the_engine_closes(folder: Path) -> None:
    engine = create_engine(folder, device="cpu", process=False, kv_memory_mb=8, lazy_graph_capture=True)
    await engine.start()
    waiting = [asyncio.create_task(engine.encode_voice(recording(20))) for _ in range(4)]
    await asyncio.sleep(0)
    await engine.aclose()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(one, ClonedVoice | EngineDead) for one in found)
    assert any(isinstance(one, EngineDead) for one in found)


async def test_recording_of_a_caller_that_left_is_not_encoded(folder: Path) -> None:
    engine = create_engine(folder, device="cpu", process=False, kv_memory_mb=8, lazy_graph_capture=True)
    await engine.start()
    try:
        first = asyncio.create_task(engine.encode_voice(recording(3)))
        leaving = [asyncio.create_task(engine.encode_voice(recording(20))) for _ in range(6)]
        await asyncio.sleep(0)
        for task in leaving:
            task.cancel()
        assert all(
            isinstance(one, asyncio.CancelledError) for one in await asyncio.gather(*leaving, return_exceptions=True)
        )
        assert await first
        assert await engine.encode_voice(recording())
    finally:
        await engine.aclose()
