"""Cloning over HTTP: by a recording, an address or an embedding, with a key and with a token."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from websockets.asyncio.client import connect

from engine.api import InvalidRequest
from realtime.references import decode_data_uri
from sessions.audio.wav import wav_file
from sessions.voices.store import VoiceStore
from tests.fakes.engine import FakeScript
from tests.realtime.live_server import EMBEDDING_SIZE, LiveServer, cloning_engine, live_server, until
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
async def test_body_of_many_values_is_refused(live: LiveServer, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes that max_upload_bytes allows beside a text are for recordings, not for millions of values."""
    decoded = []
    monkeypatch.setattr("realtime.speech_api.request.msgspec.json.decode", lambda *_, **__: decoded.append(1))
    body = b'{"input":"Hello.","items":[' + b"0," * 3_000_000 + b"0]}"
    async with live.http() as http:
        told = await http.post(path, content=body)
    assert (told.status_code, told.json()["error"]["code"]) == (413, "message_too_big")
    assert "131072 values" in told.json()["error"]["message"]
    assert not decoded


@pytest.mark.parametrize("path", ["/v1/audio/speech", "/v1/audio/speech/batch"])
async def test_large_recording_decodes_off_the_loop(
    live: LiveServer, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[str, list[str]] = {"json": [], "base64": []}

    def noted(kind: str, original: Callable[..., object]) -> Callable[..., object]:
        def decode(*args: object, **options: object) -> object:
            names[kind].append(threading.current_thread().name)
            return original(*args, **options)

        return decode

    monkeypatch.setattr("realtime.speech_api.request.msgspec.json.decode", noted("json", msgspec.json.decode))
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


KEY = "a-key-of-enough-characters"
TEXT = "Hello there."
LARGE = data_uri(bytes(200_000))


class Refusal(NamedTuple):
    code: str | None
    message: str
    param: str | None = None


OK = Refusal(None, "")
Ask = Callable[[LiveServer, str, dict[str, Any]], Awaitable[Refusal]]


class WebHost(NamedTuple):
    url: str
    requests: list[bytes]


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[LiveServer]:
    fetching = {"voices__allow_plain_http_fetch": True, "voices__allowed_private_networks": "127.0.0.1/32"}
    flags = {"voices__folder": str(tmp_path), "auth__api_keys": f"agent:{KEY}", **fetching}
    async with live_server(cloning_engine(), **flags) as server:
        yield server
        await server.freed()


@pytest.fixture
async def host() -> AsyncIterator[WebHost]:
    requests: list[bytes] = []

    def serve(head: bytes) -> list[bytes]:
        requests.append(head)
        return [answer(WAV)]

    async with web_server(serve) as port:
        yield WebHost(f"http://127.0.0.1:{port}/a.wav", requests)


async def post(guarded: LiveServer, path: str, key: str, **content: Any) -> tuple[int, dict[str, Any]]:
    async with guarded.http() as http:
        told = await http.post(path, headers={"X-API-Key": key}, **content)
    is_json = told.headers["content-type"] == "application/json"
    return told.status_code, told.json() if is_json else {}


def refusal(body: dict[str, Any]) -> Refusal:
    error = body.get("error")
    return Refusal(error["code"], error["message"], error["param"]) if error else OK


async def speech(guarded: LiveServer, key: str, fields: dict[str, Any]) -> Refusal:
    return refusal((await post(guarded, "/v1/audio/speech", key, json={"input": TEXT, **fields}))[1])


async def open_webui(guarded: LiveServer, key: str, fields: dict[str, Any]) -> Refusal:
    return refusal((await post(guarded, "/open-webui/v1/audio/speech", key, json={"input": TEXT, **fields}))[1])


async def batch_item(guarded: LiveServer, key: str, fields: dict[str, Any]) -> Refusal:
    body = {"items": [{"input": TEXT, **fields}]}
    return refusal((await post(guarded, "/v1/audio/speech/batch", key, json=body))[1]["results"][0])


async def batch_default(guarded: LiveServer, key: str, fields: dict[str, Any]) -> Refusal:
    body = {"items": [{"input": TEXT}], **fields}
    return refusal((await post(guarded, "/v1/audio/speech/batch", key, json=body))[1]["results"][0])


async def socket(guarded: LiveServer, key: str, fields: dict[str, Any]) -> Refusal:
    headers = {"Authorization": f"Bearer {key}"}
    async with connect(f"{guarded.url}/v1/audio/speech/stream", additional_headers=headers, proxy=None) as line:
        for message in (
            {"type": "session.config", "response_format": "pcm", **fields},
            {"type": "input.text", "text": TEXT},
            {"type": "input.done"},
        ):
            await line.send(json.dumps(message))
        async for message in line:
            told = json.loads(message) if isinstance(message, str) else {"type": ""}
            if told["type"] == "error":
                return Refusal("insufficient_scope", told["message"], next(iter(fields)))
            if told["type"] == "session.done":
                return OK
    raise AssertionError("closed before the end")


PATHS: tuple[Ask, ...] = (speech, open_webui, batch_item, batch_default, socket)
FIELDS = ("ref_audio", "address", "speaker_embedding")


async def token(guarded: LiveServer) -> str:
    return str((await post(guarded, "/v1/tokens", KEY))[1]["token"])


@pytest.mark.parametrize("ask", PATHS)
@pytest.mark.parametrize("kind", FIELDS)
async def test_token_clones_and_fetches_nothing(guarded: LiveServer, host: WebHost, ask: Ask, kind: str) -> None:
    fields: dict[str, Any] = {
        "ref_audio": {"ref_audio": data_uri(WAV)},
        "address": {"ref_audio": host.url},
        "speaker_embedding": {"speaker_embedding": [0.0] * EMBEDDING_SIZE},
    }[kind]
    shown = await token(guarded)
    assert await ask(guarded, shown, {}) == OK
    refused = await ask(guarded, shown, fields)
    assert (refused.code, refused.param) == ("insufficient_scope", next(iter(fields)))
    assert next(iter(fields)) in refused.message
    assert "API key" in refused.message
    assert (guarded.engine.samples, host.requests) == ([], [])
    assert all(request.voice is None or isinstance(request.voice, str) for request in guarded.engine.requests)
    assert await ask(guarded, KEY, fields) == OK
    assert not isinstance(guarded.engine.requests[-1].voice, str)


@pytest.mark.parametrize(
    "content",
    [
        {"files": {"audio_sample": ("a.wav", WAV)}, "data": {"name": "ann", "consent": "yes"}},
        {"data": {"name": "ann", "consent": "yes", "speaker_embedding": str([0.0] * EMBEDDING_SIZE)}},
    ],
)
@pytest.mark.parametrize("path", ["/v1/audio/voices", "/open-webui/v1/audio/voices"])
async def test_token_uploads_no_voice(guarded: LiveServer, path: str, content: dict[str, Any]) -> None:
    status, body = await post(guarded, path, await token(guarded), **content)
    assert (status, body["error"]["code"]) == (403, "insufficient_scope")
    assert guarded.engine.samples == []


@pytest.mark.parametrize("path", ["/v1/audio/speech", "/v1/audio/speech/batch"])
async def test_body_of_a_token_has_no_room_for_a_recording(guarded: LiveServer, path: str) -> None:
    """It takes no place of those who upload."""
    assert len(LARGE) > guarded.speech.config.limits.max_message_bytes
    status, body = await post(guarded, path, await token(guarded), json={"input": TEXT, "ref_audio": LARGE})
    assert (status, body["error"]["code"]) == (413, "message_too_big")
    assert body["error"]["message"].endswith("; ref_audio needs an API key")
