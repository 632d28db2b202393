"""``POST /v1/audio/speech`` with a voice that the request itself brings."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from engine.api import InvalidRequest
from realtime.references import decode_data_uri
from sessions.audio.wav import wav_file
from sessions.voices.store import VoiceStore
from tests.fakes.engine import FakeScript
from tests.realtime.cloning import EMBEDDING_SIZE, cloning_engine
from tests.realtime.live_server import LiveServer, live_server, until
from tests.realtime.references.fake_network import answer, web_server
from tests.sessions.audio.signals import tone
from tests.sessions.voices.voices import StoredVoice, voice

WAV = wav_file(tone(1.5, 16_000), 16_000)


def data_uri(data: bytes, media_type: str = "audio/wav") -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[LiveServer]:
    async with live_server(cloning_engine(voices=()), voices__folder=str(tmp_path)) as server:
        yield server
        await server.freed()


async def speak(live: LiveServer, **body: object) -> tuple[int, dict]:
    async with live.http() as http:
        told = await http.post("/v1/audio/speech", json={"input": "Hello there.", "task_type": "Base"} | body)
    is_json = told.headers["content-type"] == "application/json"
    return told.status_code, told.json()["error"] if is_json else dict(told.headers)


async def test_a_recording_in_the_request(live: LiveServer) -> None:
    assert (await speak(live, ref_audio=data_uri(WAV), ref_text="What is said."))[0] == 200
    (sample,) = live.engine.samples
    assert (len(sample.pcm), sample.transcript) == (4 * 36_000, "What is said.")
    assert live.engine.requests[-1].voice.transcript == "What is said."


async def test_a_recording_of_megabytes_in_the_request(live: LiveServer) -> None:
    large = wav_file(tone(29, 48_000), 48_000)
    assert len(data_uri(large)) > 10 * live.speech.config.limits.max_message_bytes
    assert (await speak(live, ref_audio=data_uri(large)))[0] == 200


@pytest.mark.parametrize("mode", [True, None])
async def test_by_the_embedding_alone(live: LiveServer, mode: bool | None) -> None:
    text = {"ref_text": "What is said."} if mode else {}
    assert (await speak(live, ref_audio=data_uri(WAV), x_vector_only_mode=mode, **text))[0] == 200
    assert live.engine.samples[0].transcript == ""


async def test_an_embedding_in_the_request(live: LiveServer) -> None:
    numbers = [float(number) for number in range(EMBEDDING_SIZE)]
    assert (await speak(live, speaker_embedding=numbers))[0] == 200
    assert np.frombuffer(live.engine.requests[-1].voice.embedding, np.float32).tolist() == numbers


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"ref_audio": data_uri(WAV), "x_vector_only_mode": False}, "ref_text", "ref_text is empty"),
        ({"ref_audio": data_uri(WAV), "x_vector_only_mode": False, "ref_text": " "}, "ref_text", "ref_text is empty"),
        ({"ref_audio": data_uri(WAV), "ref_text": "x" * 2_001}, "ref_text", "2001 characters"),
        ({"ref_audio": data_uri(WAV), "speaker_embedding": [0.0] * 8}, "speaker_embedding", "not of both"),
        ({"speaker_embedding": [0.0] * 7}, "speaker_embedding", "7 numbers, a fake base takes 8"),
        ({"speaker_embedding": [0.0] * 7 + [1e39]}, "speaker_embedding", "no finite number"),
        ({"ref_audio": data_uri(b"")}, "ref_audio", "audio is empty"),
        ({"ref_audio": data_uri(b"not audio")}, "ref_audio", "neither of wav"),
        ({"ref_audio": data_uri(wav_file(tone(31, 8_000), 8_000))}, "ref_audio", "longer than 30 s"),
        ({"ref_audio": data_uri(wav_file(tone(0.3, 8_000), 8_000))}, "ref_audio", "0.30 s long"),
        ({"ref_audio": "data:audio/wav,hello"}, "ref_audio", "must be of the form"),
        ({"ref_audio": "data:audio/wav;base64,@@@@"}, "ref_audio", "base64 is broken"),
        ({"ref_audio": data_uri(bytes(10_485_761))}, "ref_audio", "larger than max_upload_bytes"),
        ({"ref_audio": "https://127.0.0.1/a.wav"}, "ref_audio", "not on the public network"),
        ({"ref_audio": "http://93.184.216.34/a.wav"}, "ref_audio", "must begin with https://"),
        ({"ref_audio": "/etc/passwd"}, "ref_audio", "must begin with https://"),
        ({"voice": "nobody"}, "voice", "has none of its own"),
    ],
)  # fmt: skip
async def test_what_makes_no_voice_is_refused_by_name(live: LiveServer, body: dict, param: str, words: str) -> None:
    status, error = await speak(live, **body)
    assert (status, error["code"], error["param"]) == (400, "invalid_request", param)
    assert words in error["message"]


async def test_invalid_field_is_reported_before_reading_recording(live: LiveServer) -> None:
    status, error = await speak(live, ref_audio=data_uri(WAV), temperature=9)
    assert (status, error["param"]) == (400, "temperature")
    assert live.engine.samples == []


async def test_a_recording_at_an_address(tmp_path: Path) -> None:
    flags = {
        "voices__folder": str(tmp_path),
        "voices__allow_plain_http_fetch": True,
        "voices__allowed_private_networks": "127.0.0.1/32",
    }
    async with live_server(cloning_engine(), **flags) as live, web_server(lambda _: [answer(WAV)]) as port:
        assert (await speak(live, ref_audio=f"http://127.0.0.1:{port}/a.wav", ref_text="Said."))[0] == 200
        assert live.engine.samples[0].transcript == "Said."


async def test_fetching_can_be_turned_off(tmp_path: Path) -> None:
    async with live_server(cloning_engine(), voices__folder=str(tmp_path), voices__allow_url_fetch=False) as live:
        status, error = await speak(live, ref_audio="https://93.184.216.34/a.wav")
        assert (status, error["param"]) == (400, "ref_audio")
        assert "fetches nothing" in error["message"]


async def test_concurrent_encoding_above_limit_is_overloaded(tmp_path: Path) -> None:
    async with live_server(cloning_engine(), voices__folder=str(tmp_path), voices__max_concurrent_encodings=1) as live:
        with live.speech.cloning.gate.acquire():
            status, error = await speak(live, ref_audio=data_uri(WAV))
        assert (status, error["code"]) == (429, "overloaded")
        assert (await speak(live, ref_audio=data_uri(WAV)))[0] == 200


async def test_request_above_limit_is_refused_before_recording(tmp_path: Path) -> None:
    flags = {"voices__folder": str(tmp_path), "limits__max_active_responses_per_key": 1}
    async with live_server(cloning_engine(), **flags) as live:
        live.engine.script = FakeScript(first_chunk_s=60.0)
        speaking = asyncio.create_task(speak(live))
        await until(lambda: live.speech.num_active_responses == 1)
        for path, body in (("/v1/audio/speech", {"input": "Hi."}), ("/v1/audio/speech/batch", {"items": [{}]})):
            async with live.http() as http:
                told = await http.post(path, json=body | {"ref_audio": data_uri(WAV)})
            assert (told.status_code, told.json()["error"]["code"]) == (429, "limit_exceeded")
            assert "retry-after" in told.headers
        assert live.engine.samples == []
        speaking.cancel()
        await asyncio.wait([speaking])
        await live.freed()


async def test_model_voice_precedes_stored_voice_of_same_name(tmp_path: Path) -> None:
    """Which may have been stored while another model was served."""
    VoiceStore(tmp_path).add(voice("ada", owner="local"))
    async with live_server(cloning_engine(), voices__folder=str(tmp_path)) as live:
        status, _ = await speak(live, voice="ada", stream=False, x_vector_only_mode=True)
        assert status == 200
        assert live.engine.requests[-1].voice == "ada"


async def test_a_stored_voice_in_context_and_by_its_embedding_alone(live: LiveServer, tmp_path: Path) -> None:
    stored = voice("ann", owner="local", num_frames=25)
    small = msgspec.structs.replace(stored.clone, embedding=bytes(4 * EMBEDDING_SIZE))
    VoiceStore(tmp_path).add(StoredVoice(stored.manifest, small))
    status, headers = await speak(live, voice="ann", stream=False)
    assert status == 200
    assert live.engine.requests[-1].voice == small
    with_frames = int(headers["x-voicewire-input-tokens"])
    _, headers = await speak(live, voice="ann", stream=False, x_vector_only_mode=True)
    assert live.engine.requests[-1].voice == type(small)(embedding=small.embedding)
    assert with_frames - int(headers["x-voicewire-input-tokens"]) == 25


async def test_stored_voice_without_transcript_is_refused_in_context(live: LiveServer, tmp_path: Path) -> None:
    stored = voice("ann", owner="local")
    clone = msgspec.structs.replace(stored.clone, embedding=bytes(4 * EMBEDDING_SIZE), transcript="", codes=b"")
    VoiceStore(tmp_path).add(StoredVoice(stored.manifest, clone))
    assert (await speak(live, voice="ann", x_vector_only_mode=True))[0] == 200
    status, error = await speak(live, voice="ann", x_vector_only_mode=False)
    assert (status, error["code"], error["param"]) == (400, "invalid_request", "x_vector_only_mode")
    assert "'ann'" in error["message"]


@pytest.mark.parametrize("brought", [{"speaker_embedding": [0.0] * EMBEDDING_SIZE}, {"ref_audio": data_uri(WAV)}])
async def test_voice_beside_a_brought_one_is_left_out_with_a_warning(live: LiveServer, brought: dict) -> None:
    _, headers = await speak(live, **brought)
    assert "x-voicewire-warning" not in headers
    status, headers = await speak(live, voice="nobody", **brought)
    assert status == 200
    assert "left out" in headers["x-voicewire-warning"]


async def test_a_body_without_room_for_recordings(tmp_path: Path) -> None:
    engine = cloning_engine(can_encode=False)
    async with live_server(engine, voices__folder=str(tmp_path), limits__max_message_bytes=5_000) as live:
        status, error = await speak(live, ref_audio=data_uri(WAV))
        assert (status, error["code"]) == (413, "message_too_big")


async def test_error_for_invalid_body_contains_no_recording(live: LiveServer) -> None:
    async with live.http() as http:
        told = await http.post("/v1/audio/speech", content=json.dumps({"input": "Hi", "ref_audio": 5}))
    assert told.status_code == 400


@pytest.mark.parametrize("path", ["/v1/audio/speech", "/v1/audio/speech/batch"])
async def test_large_body_of_small_values_is_refused(
    live: LiveServer, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes that max_upload_bytes allows beside a text are for recordings, not for millions of values."""
    decoded = []
    monkeypatch.setattr("realtime.speech_api.request_body.msgspec.json.decode", lambda *_, **__: decoded.append(1))
    body = b'{"input":"Hello.","items":[' + b"0," * 3_000_000 + b"0]}"
    async with live.http() as http:
        told = await http.post(path, content=body)
    assert (told.status_code, told.json()["error"]["code"]) == (413, "message_too_big")
    assert "131072 values" in told.json()["error"]["message"]
    assert not decoded


@pytest.mark.parametrize("path", ["/v1/audio/speech", "/v1/audio/speech/batch"])
async def test_large_recording_is_decoded_off_the_loop(
    live: LiveServer, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[str, list[str]] = {"json": [], "base64": []}

    def noted(kind: str, original: Callable[..., object]) -> Callable[..., object]:
        def decode(*args: object, **options: object) -> object:
            names[kind].append(threading.current_thread().name)
            return original(*args, **options)

        return decode

    monkeypatch.setattr("realtime.speech_api.request_body.msgspec.json.decode", noted("json", msgspec.json.decode))
    monkeypatch.setattr("realtime.voice_cloner.decode_data_uri", noted("base64", decode_data_uri))
    sound = wav_file(tone(20.0, 48_000), 48_000)
    fields = {"input": "Hello.", "task_type": "Base", "ref_audio": data_uri(sound), "ref_text": "What is said."}
    body = fields if path.endswith("speech") else {"items": [fields]}
    async with live.http() as http:
        assert (await http.post(path, json=body)).status_code == 200
    assert len(live.engine.samples) == 1
    assert [len(found) for found in names.values()] == [1, 1]
    assert threading.main_thread().name not in names["json"] + names["base64"]


@pytest.mark.parametrize("num_bytes", [0, 1, 49_151, 49_152, 49_153, 200_001])
def test_base64_in_pieces_is_that_of_the_whole(num_bytes: int) -> None:
    data = bytes(range(256)) * 1_000
    assert decode_data_uri(data_uri(data[:num_bytes]), 1_000_000) == data[:num_bytes]


@pytest.mark.parametrize("text", ["=" * 1_000_000, "A" * 65_532 + "AA==AAAA", "AAAA" * 20_000 + "A", "AA\nAA"])
def test_broken_base64_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="base64 is broken"):
        decode_data_uri("data:audio/wav;base64," + text, 10_000_000)
