"""Every task of both sizes, from the real loader to the wires: HTTP and WebSocket say the same."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.launch import create_engine
from realtime.protocol import events as ev
from sessions.audio.wav import wav_file
from tests.fakes.checkpoints import TINY, TINY_PROJECTED, write_checkpoint
from tests.realtime.live_server import LiveServer, SpokenResponse, live_server, speak
from tests.sessions.audio.signals import speech_like

pytestmark = pytest.mark.usefixtures("quick_engines")

SIZES = {"0b6": TINY, "1b7": TINY_PROJECTED}
TEXT, TRANSCRIPT, FRAMES = "Hello there, you.", "hello there my friend", 6
WAV = wav_file(speech_like(36_000, 16_000, seed=1), 16_000)
REFERENCE = f"data:audio/wav;base64,{base64.b64encode(WAV).decode()}"
# At random weights a warmer draw is all noise: the same words in every voice.
COOL = {"temperature": 0.2, "predictor_temperature": 0.2, "min_new_tokens": FRAMES}
PCM = ev.NativeAudioFormat(encoding="pcm_s16le", sample_rate=24_000)

Serve = Callable[[str, str], AbstractAsyncContextManager[LiveServer]]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    made: dict[tuple[str, str], Path] = {}

    def folder(size: str, task: str) -> Path:
        if (size, task) not in made:
            made[size, task] = write_checkpoint(tmp_path_factory.mktemp(f"{size}-{task}"), SIZES[size], task=task)
        return made[size, task]

    return folder


@pytest.fixture
def serve(folder_of: Callable[[str, str], Path], tmp_path: Path) -> Serve:
    @asynccontextmanager
    async def server(size: str, task: str) -> AsyncIterator[LiveServer]:
        engine: Any = create_engine(
            folder_of(size, task), device="cpu", process=False, kv_memory_mb=8, lazy_graph_capture=True
        )
        async with live_server(engine, voices__folder=str(tmp_path)) as live:
            yield live

    return server


async def post(live: LiveServer, **fields: object) -> tuple[int, Any]:
    body = {"input": TEXT, "response_format": "pcm", "seed": 5, "max_frames": FRAMES} | COOL | fields
    async with live.http() as http:
        answer = await http.post("/v1/audio/speech", json=body, timeout=60)
    return answer.status_code, answer.content if answer.status_code == 200 else answer.json()["error"]


async def over_the_socket(live: LiveServer, **settings: object) -> bytes:
    async with live.session() as client:
        sampling = ev.NativeSamplingOptions(**COOL)  # type: ignore[arg-type]
        spoken: SpokenResponse = await speak(
            client, TEXT, format=PCM, seed=5, max_frames=FRAMES, sampling=sampling, **settings
        )
    assert spoken.done.status == "completed"
    return b"".join(packet for message in spoken.audio for packet in message.packets)


async def store_voice(live: LiveServer, name: str, transcript: str) -> None:
    parts: list[Any] = [("name", (None, name)), ("consent", (None, "yes")), ("audio_sample", ("a", WAV, "audio/wav"))]
    async with live.http() as http:
        told = await http.post("/v1/audio/voices", files=[*parts, ("ref_text", (None, transcript))], timeout=60)
    assert told.status_code == 200, told.text


def is_sound(pcm: bytes) -> bool:
    samples = np.frombuffer(pcm, "<i2")
    return samples.size == FRAMES * 1920 and np.abs(samples).max() > 300


@pytest.mark.parametrize("size", SIZES)
async def test_custom_voice(size: str, serve: Serve) -> None:
    async with serve(size, "custom_voice") as live:
        asked = {"voice": "dylan", "language": "chinese"}
        status, pcm = await post(live, task_type="CustomVoice", **asked)
        assert status == 200
        assert is_sound(pcm)
        assert await over_the_socket(live, **asked) == pcm
        _, other = await post(live, voice="ada", language="english", text_layout="streaming")
        assert is_sound(other)
        assert other != pcm
        status, styled = await post(live, **asked, instructions="Whisper.")
        if size == "1b7":
            assert is_sound(styled)
            assert styled != pcm
        else:
            assert (status, styled) == (200, pcm)
        status, error = await post(live, language="Klingon")
        assert (status, error["code"], error["param"]) == (400, "unknown_language", "language")


@pytest.mark.parametrize("size", SIZES)
async def test_voice_design(size: str, serve: Serve) -> None:
    async with serve(size, "voice_design") as live:
        words = "An old deep voice."
        status, pcm = await post(live, task_type="VoiceDesign", instructions=words, language="en")
        assert status == 200
        assert is_sound(pcm)
        assert await over_the_socket(live, instruct=words, language="english") == pcm
        assert (await post(live, instructions="A young one.", language="en"))[1] != pcm


@pytest.mark.parametrize("transcript", ["", TRANSCRIPT], ids=["vector", "in-context"])
@pytest.mark.parametrize("size", SIZES)
async def test_base(size: str, transcript: str, serve: Serve) -> None:
    async with serve(size, "base") as live:
        asked = {"ref_audio": REFERENCE} | ({"ref_text": transcript} if transcript else {})
        status, pcm = await post(live, task_type="Base", language="german", **asked)
        assert status == 200, pcm
        assert is_sound(pcm)
        await store_voice(live, "mine", transcript)
        assert await over_the_socket(live, voice="mine", language="german") == pcm
        _, full = await post(live, language="german", text_layout="full", **asked)
        assert is_sound(full)
        assert full != pcm
        status, error = await post(live)
        assert (status, error["param"]) == (400, "voice")
        status, error = await post(live, speaker_embedding=[0.5] * 7)
        assert (status, error["param"]) == (400, "speaker_embedding")


async def test_in_context_needs_the_words_of_the_recording(serve: Serve) -> None:
    async with serve("0b6", "base") as live:
        status, error = await post(live, ref_audio=REFERENCE, x_vector_only_mode=False)
        assert (status, error["param"]) == (400, "ref_text")


async def test_every_parameter_is_refused_by_name_on_both_wires(serve: Serve) -> None:
    bad = {"temperature": 2.5, "repetition_window": 0, "predictor_top_p": 0, "min_new_tokens": -1, "top_k": -1}
    async with serve("0b6", "custom_voice") as live, live.session() as client:
        for name, value in bad.items():
            status, error = await post(live, **{name: value})
            assert (status, error["param"]) == (400, name)
            sampling = ev.NativeSamplingOptions(**{name: value})  # type: ignore[arg-type]
            given = ev.NativeSpeechSettings(sampling=sampling)
            await client.send(ev.ResponseCreate(response_id=name, settings=given, text=TEXT, end=True))
            refused = await first_error(client)
            assert isinstance(refused, ev.ErrorEvent)
            assert (refused.param, refused.response_id) == (name, name)


async def first_error(client: Any) -> Any:
    async for message in client:
        if isinstance(message, ev.ErrorEvent):
            return message
    return None
