"""The ``openai`` package, as its users call it, against our server."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator

import httpx2 as httpx
import numpy as np
import openai
import pytest

from sessions.config import Encoding
from tests.fakes.engine import FakeScript
from tests.realtime.live_server import NO_CERTIFICATES, LiveServer, live_server, until
from tests.sessions.audio.signals import decode

TEXT = "Hello there, this is a short reply."
KEY = "0123456789abcdef"
ENCODINGS = {
    "mp3": Encoding.MP3,
    "opus": Encoding.OGG_OPUS,
    "aac": Encoding.AAC,
    "flac": Encoding.FLAC,
    "wav": Encoding.WAV,
}


@pytest.fixture
async def live() -> AsyncIterator[LiveServer]:
    async with live_server(auth__api_keys=f"agent:{KEY}") as server:
        yield server


def client_of(live: LiveServer, key: str = KEY) -> openai.AsyncOpenAI:
    http = httpx.AsyncClient(trust_env=False, verify=NO_CERTIFICATES)
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{live.port}/v1", api_key=key, http_client=http, max_retries=0)


@pytest.mark.parametrize("name", [*ENCODINGS, "pcm"])
async def test_speech_in_each_format(live: LiveServer, name: str) -> None:
    async with client_of(live) as client:
        answer = await client.audio.speech.create(
            model="gpt-4o-mini-tts", voice="ada", input=TEXT, response_format=name
        )
    data = answer.content
    pcm = np.frombuffer(data, "<i2") / 32_768 if name == "pcm" else decode(data, ENCODINGS[name])[0]
    assert np.abs(pcm).max() > 0.1


async def test_speech_that_is_heard_while_it_is_spoken(live: LiveServer) -> None:
    live.engine.script = FakeScript(ms_per_char=60, first_chunk_s=0.01, real_time_factor=1.0)
    async with client_of(live) as client:
        speaking = client.audio.speech.with_streaming_response.create(
            model="tts-1", voice="alloy", input=TEXT * 3, response_format="pcm", speed=1.25
        )
        async with speaking as answer:
            pieces = answer.iter_bytes(1_024)
            assert len(await anext(pieces)) == 1_024
            assert live.speech.num_active_responses == 1
            assert "unknown" in answer.headers["X-Voicewire-Warning"]
    await until(lambda: live.speech.num_active_responses == 0)


async def test_events(live: LiveServer) -> None:
    async with client_of(live) as client:
        speaking = client.audio.speech.with_streaming_response.create(
            model="gpt-4o-mini-tts", voice="ada", input=TEXT, response_format="mp3", stream_format="sse"
        )
        async with speaking as answer:
            lines = [line async for line in answer.iter_lines()]
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    audio = b"".join(base64.b64decode(event["audio"]) for event in events[:-1])
    assert np.abs(decode(audio, Encoding.MP3)[0]).max() > 0.1
    assert events[-1]["type"] == "speech.audio.done"
    assert events[-1]["usage"]["total_tokens"] > 0


async def test_the_model_is_listed(live: LiveServer) -> None:
    async with client_of(live) as client:
        assert [model.id async for model in client.models.list()] == ["fake"]


async def test_errors_are_its_own(live: LiveServer) -> None:
    async with client_of(live) as client:
        with pytest.raises(openai.BadRequestError) as bad:
            await client.audio.speech.create(model="tts-1", voice="ada", input=TEXT, speed=9)
        assert (bad.value.param, bad.value.code) == ("speed", "invalid_request")
        with pytest.raises(openai.APIStatusError) as large:
            await client.audio.speech.create(model="tts-1", voice="ada", input="x" * 5_000)
        assert large.value.status_code == 413
        live.speech.draining = True
        with pytest.raises(openai.APIStatusError) as late:
            await client.audio.speech.create(model="tts-1", voice="ada", input=TEXT)
        assert late.value.status_code == 503
    async with client_of(live, "no key of this server") as stranger:
        with pytest.raises(openai.AuthenticationError):
            await stranger.audio.speech.create(model="tts-1", voice="ada", input=TEXT)
