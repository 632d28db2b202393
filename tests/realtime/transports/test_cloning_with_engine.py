"""Voices over HTTP with a real engine behind: a small checkpoint that clones, its weights at random."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sessions.audio.wav import wav_file
from tests.fakes.checkpoints import write_checkpoint
from tests.realtime.live_server import LiveServer, live_server, speak
from tests.sessions.audio.signals import recording, speech_like

SPEECH = speech_like(48_000, 16_000, seed=1)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint") / "base", task="base")


@pytest.fixture
async def live(checkpoint: Path, tmp_path: Path) -> AsyncIterator[LiveServer]:
    from engine.launch import create_engine

    async with live_server(create_engine(checkpoint, lazy_graph_capture=True), voices__folder=str(tmp_path)) as server:
        yield server


async def test_a_voice_is_heard_stored_and_spoken_with(live: LiveServer) -> None:
    async with live.http() as http:
        for name, kind, fields in (("ann", "flac", {}), ("ben", "mp3", {"ref_text": "hello there my friend"})):
            form = {"name": name, "consent": "yes"} | fields
            parts = [(field, (None, value)) for field, value in form.items()]
            parts.append(("audio_sample", ("a", recording(kind, [SPEECH], 16_000), "audio/wav")))
            told = await http.post("/v1/audio/voices", files=parts, timeout=30)
            assert told.status_code == 200, told.text
            assert told.json()["voice"]["in_context"] == bool(fields)
        for voice, num_reference_frames in (("ann", 0), ("ben", 38)):
            body = {"input": "Hello there.", "voice": voice, "max_frames": 6, "stream": False, "seed": 1}
            answer = await http.post("/v1/audio/speech", json=body, timeout=30)
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-voicewire-output-tokens"] == "6"
            assert int(answer.headers["x-voicewire-input-tokens"]) >= num_reference_frames
    async with live.session() as client:
        assert (await speak(client, "Hello there.", voice="ben", max_frames=6)).done.status == "completed"


async def test_a_stored_voice_speaks_as_its_recording_does(live: LiveServer) -> None:
    """The same request, with the voice's name or with the recording itself, gives the same audio."""
    wav = wav_file(SPEECH, 16_000)
    reference = f"data:audio/wav;base64,{base64.b64encode(wav).decode()}"
    asked = {"input": "Hello there.", "response_format": "pcm", "max_frames": 6, "seed": 3}
    async with live.http() as http:
        parts = [("name", (None, "ann")), ("consent", (None, "yes")), ("ref_text", (None, "hello there"))]
        parts.append(("audio_sample", ("a.wav", wav, "audio/wav")))
        assert (await http.post("/v1/audio/voices", files=parts, timeout=30)).status_code == 200
        by_name = await http.post("/v1/audio/speech", json=asked | {"voice": "ann"}, timeout=30)
        by_recording = asked | {"ref_audio": reference, "ref_text": "hello there"}
        assert (await http.post("/v1/audio/speech", json=by_recording, timeout=30)).content == by_name.content
        vector_alone = asked | {"voice": "ann", "x_vector_only_mode": True}
        assert (await http.post("/v1/audio/speech", json=vector_alone, timeout=30)).content != by_name.content
