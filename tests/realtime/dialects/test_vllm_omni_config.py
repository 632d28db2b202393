"""vLLM-Omni's ``session.config`` over a socket: fields that mean what they do on ``POST /v1/audio/speech``."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from websockets.asyncio.client import ClientConnection, connect

from sessions.audio.wav import wav_file
from tests.realtime.cloning import EMBEDDING_SIZE, cloning_engine
from tests.realtime.live_server import LiveServer, live_server
from tests.realtime.transports.test_speech_cloning import data_uri
from tests.sessions.audio.signals import tone

RECORDING = data_uri(wav_file(tone(1.5, 16_000), 16_000))


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[LiveServer]:
    async with live_server(cloning_engine(), voices__folder=str(tmp_path)) as server:
        yield server
        await server.freed()


@pytest.fixture
async def socket(live: LiveServer) -> AsyncIterator[ClientConnection]:
    async with connect(f"{live.url}/v1/audio/speech/stream") as client:
        yield client


async def configure(socket: ClientConnection, **fields: object) -> None:
    await socket.send(json.dumps({"type": "session.config", "response_format": "pcm", **fields}))


async def speak(socket: ClientConnection) -> list[dict]:
    """Speak one utterance; the JSON messages up to its end."""
    await socket.send(json.dumps({"type": "input.text", "text": "Hello there."}))
    await socket.send(json.dumps({"type": "input.done"}))
    messages = []
    async for message in socket:
        if isinstance(message, str):
            messages.append(json.loads(message))
            if messages[-1]["type"] == "session.done":
                break
    return messages


async def test_sampling_of_the_config_reaches_the_engine(live: LiveServer, socket: ClientConnection) -> None:
    await configure(socket, temperature=0.5, subtalker_top_k=7, max_new_tokens=100, seed=3)
    await configure(socket, top_p=0.8)
    await speak(socket)
    request = live.engine.requests[-1]
    sampling = request.sampling
    assert (sampling.temperature, sampling.predictor_top_k, sampling.top_p, sampling.seed) == (0.5, 7, 0.8, 3)
    assert request.max_frames == 99


async def test_recording_of_the_config_speaks_until_another_voice(live: LiveServer, socket: ClientConnection) -> None:
    await configure(socket, task_type="Base", ref_audio=RECORDING, ref_text="What is said.")
    await speak(socket)
    assert live.engine.requests[-1].voice.transcript == "What is said."
    await configure(socket, ref_audio=RECORDING, x_vector_only_mode=True)
    await speak(socket)
    assert live.engine.requests[-1].voice.transcript == ""
    await configure(socket, speaker_embedding=[0.5] * EMBEDDING_SIZE)
    await speak(socket)
    assert len(live.engine.requests[-1].voice.embedding) == 4 * EMBEDDING_SIZE
    await configure(socket, voice="ben")
    await speak(socket)
    assert live.engine.requests[-1].voice == "ben"
    assert len(live.engine.samples) == 2


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"temperature": 9.0}, "temperature"),
        ({"top_k": "many"}, "top_k"),
        ({"task_type": "Singing"}, "task_type must be"),
        ({"ref_text": "Hi."}, "without ref_audio"),
        ({"ref_audio": RECORDING, "x_vector_only_mode": False}, "ref_text is empty"),
        ({"ref_audio": "data:audio/wav;base64,@@@@"}, "base64 is broken"),
        ({"speaker_embedding": [0.0]}, "1 numbers"),
    ],
)
async def test_wrong_field_is_named_and_the_former_config_holds(
    live: LiveServer, socket: ClientConnection, fields: dict, words: str
) -> None:
    await configure(socket, temperature=0.5)
    await configure(socket, **fields)
    error = json.loads(await socket.recv())
    assert error["type"] == "error"
    assert words in error["message"]
    assert [message["type"] for message in await speak(socket)][-1] == "session.done"
    assert live.engine.requests[-1].sampling.temperature == 0.5
