"""Voices over HTTP: uploads, lists, and the lists of vendors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import InvalidStatus

from engine.api import ClonedVoice
from realtime.client import open_session
from realtime.protocol import events as ev
from sessions.audio.wav import wav_file
from sessions.voices.store import VoiceStore
from sessions.voices.voice import SHARED, StoredVoice, VoiceManifest
from tests.fakes.engine import FakeScript
from tests.realtime.live_server import (
    BASE_INFO,
    EMBEDDING_SIZE,
    LiveServer,
    cloning_engine,
    hear,
    live_server,
    speak,
    until,
)
from tests.sessions.audio.signals import CONTAINERS, flac_bomb, float_wav, recording, tone
from tests.sessions.voices.voices import voice

KEYS = "alice:0123456789abcdef,bob:fedcba9876543210"
ALICE, BOB = {"X-API-Key": "0123456789abcdef"}, {"X-API-Key": "fedcba9876543210"}
WAV = wav_file(tone(1.5, 16_000), 16_000)
PATH = "/v1/audio/voices"


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[LiveServer]:
    async with live_server(cloning_engine(), voices__folder=str(tmp_path)) as server:
        yield server


async def add(
    live: LiveServer, name: str = "ann", audio: bytes | None = WAV, headers: dict | None = None, **fields: str
) -> tuple[int, dict]:
    files = {} if audio is None else {"audio_sample": ("a.wav", audio, "audio/wav")}
    async with live.http() as http:
        data = {"name": name, "consent": "she agreed on 1 May"} | fields
        multipart = [(field, (None, value)) for field, value in data.items()] + list(files.items())
        answer = await http.post(PATH, files=multipart, headers=headers)
    return answer.status_code, answer.json()


async def get(live: LiveServer, path: str, headers: dict | None = None) -> tuple[int, dict]:
    async with live.http() as http:
        answer = await http.get(path, headers=headers)
    return answer.status_code, answer.json()


async def delete(live: LiveServer, name: str, headers: dict | None = None) -> tuple[int, dict]:
    async with live.http() as http:
        answer = await http.delete(f"{PATH}/{name}", headers=headers)
    return answer.status_code, answer.json()


async def test_a_voice_s_whole_life(live: LiveServer) -> None:
    status, told = await add(live, ref_text="Hello there.", speaker_description="warm")
    assert (status, told["success"]) == (200, True)
    shown = told["voice"]
    assert (shown["name"], shown["consent"], shown["ref_text"]) == ("ann", "she agreed on 1 May", "Hello there.")
    assert (shown["speaker_description"], shown["in_context"], shown["sample_s"]) == ("warm", True, 1.5)
    (sample,) = live.engine.samples
    assert sample.transcript == "Hello there."
    assert len(sample.pcm) == 1.5 * 24_000 * 4
    status, listed = await get(live, PATH)
    assert (status, listed["voices"], listed["uploaded_voices"]) == (200, ["ada", "ben", "ann"], [shown])
    assert await get(live, f"{PATH}/ann") == (200, shown)
    assert (await get(live, f"{PATH}/ada"))[1]["built_in"] is True
    async with live.http() as http:
        spoken = await http.post("/v1/audio/speech", json={"input": "Hello.", "voice": "ann"})
    assert spoken.status_code == 200
    clone = live.engine.requests[-1].voice
    assert np.frombuffer(clone.embedding, np.float32).tolist() == [144_000.0] * EMBEDDING_SIZE
    assert await delete(live, "ann") == (200, {"success": True, "message": "voice 'ann' was deleted"})
    assert (await delete(live, "ann"))[0] == 404
    status, told = await get(live, f"{PATH}/ann")
    assert (status, told["error"]["code"]) == (404, "voice_not_found")


async def rename(live: LiveServer, name: str, body: Any, headers: dict | None = None) -> tuple[int, dict]:
    async with live.http() as http:
        answer = await http.patch(f"{PATH}/{name}", json=body, headers=headers)
    return answer.status_code, answer.json()


async def test_renamed_voice_keeps_all_but_its_name(live: LiveServer) -> None:
    _, stored = await add(live, ref_text="Hello there.", speaker_description="warm")
    before = live.speech.voices.find("local", "ann")
    status, renamed = await rename(live, "ann", {"name": "anna"})
    assert (status, renamed["voice"]) == (200, stored["voice"] | {"name": "anna"})
    assert (await get(live, PATH))[1]["uploaded_voices"] == [renamed["voice"]]
    after = live.speech.voices.find("local", "anna")
    assert before is not None
    assert after is not None
    assert after.clone == before.clone


async def test_renaming_is_refused_by_name(live: LiveServer) -> None:
    await add(live)
    await add(live, "other")
    live.speech.voices.add(voice_of_operator("narrator"))
    for name, body, status, code, words in (
        ("ann", {"name": "a b"}, 400, "invalid_request", "1 to 64"),
        ("ann", {"name": 7}, 400, "invalid_request", "JSON object with a name"),
        ("ann", {}, 400, "invalid_request", "JSON object with a name"),
        ("ann", {"name": "other"}, 409, "voice_exists", "'other' exists"),
        ("ann", {"name": "ann"}, 409, "voice_exists", "'ann' exists"),
        ("ann", {"name": "ADA"}, 403, "voice_protected", "belongs to the model"),
        ("ada", {"name": "x"}, 403, "voice_protected", "belongs to the model"),
        ("narrator", {"name": "x"}, 403, "voice_protected", "belongs to the operator"),
        ("nobody", {"name": "x"}, 404, "voice_not_found", "'nobody' is unknown"),
    ):
        answer = await rename(live, name, body)
        assert (answer[0], answer[1]["error"]["code"]) == (status, code), (name, body)
        assert words in answer[1]["error"]["message"]
        assert answer[1]["error"]["param"] == "name"
    assert (await get(live, PATH))[1]["voices"] == ["ada", "ben", "ann", "other", "narrator"]


async def test_voice_deleted_during_renaming_stays_deleted(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    await add(live)
    store = live.speech.voices
    add_now = store.add

    def add_late(renamed: StoredVoice) -> None:
        assert store.remove("local", "ann")
        add_now(renamed)

    monkeypatch.setattr(store, "add", add_late)
    status, told = await rename(live, "ann", {"name": "anna"})
    assert (status, told["error"]["code"]) == (404, "voice_not_found")
    assert (await get(live, PATH))[1]["uploaded_voices"] == []


async def test_voices_have_ids_for_clients_that_need_them(live: LiveServer) -> None:
    await add(live, speaker_description="warm")
    status, told = await get(live, "/v1/voices")
    assert status == 200
    assert [(one["name"], one["voice_id"], one["description"]) for one in told["voices"]] == [
        ("ada", "ada", "a low hum"),
        ("ben", "ben", "a higher hum"),
        ("ann", "ann", "warm"),
    ]


@pytest.mark.parametrize("kind", CONTAINERS)
async def test_every_kind_of_recording_is_taken(live: LiveServer, kind: str) -> None:
    status, told = await add(live, audio=recording(kind, [tone(1.2, 48_000)] * 2, 48_000))
    assert status == 200
    assert told["voice"]["sample_s"] == pytest.approx(1.2, abs=0.1)


async def test_an_embedding_is_a_voice_too(live: LiveServer) -> None:
    numbers = [0.5, -1.0, 2.25, 0, 1e-3, -7, 8, 9]
    status, told = await add(live, audio=None, speaker_embedding=json.dumps(numbers))
    assert (status, told["voice"]["source"], told["voice"]["in_context"]) == (200, "embedding", False)
    async with live.session() as client:
        assert (await speak(client, "Hello.", voice="ann")).done.status == "completed"
    clone = live.engine.requests[-1].voice
    np.testing.assert_allclose(np.frombuffer(clone.embedding, np.float32), numbers, rtol=1e-6)


NAN_WAV = float_wav(np.full(16_000, np.nan, np.float32), 8_000)
NUMBERS = json.dumps([0.1] * EMBEDDING_SIZE)


@pytest.mark.parametrize(
    ("name", "audio", "fields", "status", "code", "param", "words"),
    [
        ("", WAV, {}, 400, "invalid_request", "name", "1 to 64"),
        ("../ann", WAV, {}, 400, "invalid_request", "name", "1 to 64"),
        ("ann", WAV, {"consent": " "}, 400, "invalid_request", "consent", "empty"),
        ("ann", WAV, {"ref_text": "x" * 2_001}, 400, "invalid_request", "ref_text", "2000"),
        ("ada", WAV, {}, 403, "voice_protected", "name", "belongs to the model"),
        ("ADA", WAV, {}, 403, "voice_protected", "name", "belongs to the model"),
        ("ann", None, {}, 400, "invalid_request", "audio_sample", "none is given"),
        ("ann", WAV, {"speaker_embedding": NUMBERS}, 400, "invalid_request", "audio_sample", "both"),
        ("ann", b"", {}, 400, "invalid_request", "audio_sample", "audio is empty"),
        ("ann", b"this is not audio", {}, 400, "invalid_request", "audio_sample", "neither of wav, flac"),
        ("ann", wav_file(tone(31, 8_000), 8_000), {}, 400, "invalid_request", "audio_sample", "longer than 30 s"),
        ("ann", wav_file(tone(0.5, 8_000), 8_000), {}, 400, "invalid_request", "audio_sample", "0.50 s long"),
        ("ann", NAN_WAV, {}, 400, "invalid_request", "audio_sample", "NaN"),
        ("ann", flac_bomb(40), {}, 400, "invalid_request", "audio_sample", "longer than 30 s"),
        ("ann", None, {"speaker_embedding": "[1, 2]"}, 400, "invalid_request", "speaker_embedding", "takes 8"),
        ("ann", None, {"speaker_embedding": "hello"}, 400, "invalid_request", "speaker_embedding", "JSON list"),
        ("ann", None, {"speaker_embedding": "[NaN]"}, 400, "invalid_request", "speaker_embedding", "JSON list"),
        ("ann", None, {"speaker_embedding": str([1e39] * 8)}, 400, "invalid_request", "speaker_embedding", "finite"),
    ],
)  # fmt: skip
async def test_what_makes_no_voice_is_refused_by_name(
    live: LiveServer, name: str, audio: bytes | None, fields: dict, status: int, code: str, param: str, words: str
) -> None:
    got, told = await add(live, name, audio, **fields)
    assert (got, told["error"]["code"], told["error"]["param"]) == (status, code, param)
    assert words in told["error"]["message"]
    assert (await get(live, PATH))[1]["uploaded_voices"] == []


@pytest.mark.parametrize("declared", [True, False])
async def test_eleven_megabytes_are_refused_without_reading_them(live: LiveServer, declared: bool) -> None:
    boundary, size = "xx", 11 * 2**20
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="audio_sample"; filename="a.wav"\r\n\r\n'.encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
    length = f"Content-Length: {size}" if declared else "Transfer-Encoding: chunked"
    writer.write(
        f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary={boundary}\r\n"
        f"{length}\r\n\r\n".encode()
    )
    if not declared:
        for piece in (head, *[bytes(2**19)] * 22):
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
    answer = await reader.readuntil(b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413")
    writer.transport.abort()


@pytest.mark.parametrize("content_type", ["application/json", "multipart/form-data", "multipart/form-data; boundary=x"])
async def test_what_is_no_form_is_refused(live: LiveServer, content_type: str) -> None:
    async with live.http() as http:
        answer = await http.post(PATH, content=b"{}", headers={"Content-Type": content_type})
    assert answer.status_code == 400


async def test_a_form_with_too_many_parts(live: LiveServer) -> None:
    status, told = await add(live, **{f"field{number}": "x" for number in range(30)})
    assert (status, told["error"]["code"]) == (400, "invalid_request")


async def test_an_upload_that_never_ends(tmp_path: Path) -> None:
    flags = {"voices__folder": str(tmp_path), "voices__upload_timeout_s": 0.3}
    async with live_server(cloning_engine(), **flags) as live:
        reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
        form = "Content-Type: multipart/form-data; boundary=xx\r\nContent-Length: 500"
        writer.write(f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\n{form}\r\n\r\n--xx".encode())
        assert b"408" in await reader.readline()
        writer.close()
        await until(lambda: live.speech.cloning.uploads.num_inside == 0)


async def test_concurrent_uploads_above_limit_are_overloaded(tmp_path: Path) -> None:
    async with live_server(cloning_engine(), voices__folder=str(tmp_path), voices__max_concurrent_uploads=1) as live:
        with live.speech.cloning.uploads.acquire():
            status, told = await add(live)
        assert (status, told["error"]["code"]) == (429, "overloaded")
        assert (await add(live))[0] == 200


async def test_of_two_uploads_of_one_name_at_once_one_wins(live: LiveServer) -> None:
    answers = await asyncio.gather(*(add(live, audio=None, speaker_embedding=NUMBERS) for _ in range(6)))
    assert sorted(status for status, _ in answers) == [200] + [409] * 5
    assert {told["error"]["code"] for status, told in answers if status == 409} == {"voice_exists"}


async def test_a_voice_deleted_while_it_speaks_speaks_on(live: LiveServer) -> None:
    live.engine.script = FakeScript(ms_per_char=60, first_chunk_s=0.01, real_time_factor=0.05)
    await add(live, audio=None, speaker_embedding=NUMBERS)
    text = "This is a sentence that is long enough to be spoken in more than one segment, I should think. " * 12
    async with live.session() as client:
        settings = ev.NativeSpeechSettings(voice="ann", pace="burst")
        await client.send(ev.ResponseCreate(response_id="r", settings=settings, text=text, end=True))
        await until(lambda: len(live.engine.requests) > 0)
        assert (await delete(live, "ann"))[0] == 200
        num_before = len(live.engine.requests)
        assert (await hear(client, "r")).done.status == "completed"
        assert len({request.voice for request in live.engine.requests}) == 1
        assert len(live.engine.requests) > num_before
        await client.send(ev.ResponseCreate(response_id="s", settings=settings, text="Again.", end=True))
        refused = await anext(aiter(client))
        assert isinstance(refused, ev.ErrorEvent)
        assert refused.code == "unknown_voice"


async def test_a_session_may_hold_a_stored_voice(live: LiveServer) -> None:
    await add(live, audio=None, speaker_embedding=NUMBERS)
    async with live.session() as client:
        assert client.created.voices == ("ada", "ben", "ann")
        await client.send(ev.SessionUpdate(settings=ev.NativeSpeechSettings(voice="ann")))
        spoken = await speak(client, "Hello.")
        assert spoken.done.status == "completed"
        assert (await speak(client, "Hello.", "s", voice="ben")).done.status == "completed"
    assert [isinstance(request.voice, str) for request in live.engine.requests] == [False, True]


async def test_keys_have_voices_of_their_own(tmp_path: Path) -> None:
    async with live_server(cloning_engine(), voices__folder=str(tmp_path), auth__api_keys=KEYS) as live:
        VoiceStore(tmp_path).add(voice_of_operator("narrator"))
        assert (await add(live, audio=None, speaker_embedding=NUMBERS))[0] == 401
        assert (await add(live, audio=None, headers=ALICE, speaker_embedding=NUMBERS))[0] == 200
        assert (await get(live, PATH, ALICE))[1]["voices"] == ["ada", "ben", "ann", "narrator"]
        assert (await get(live, PATH, BOB))[1]["voices"] == ["ada", "ben", "narrator"]
        assert (await get(live, f"{PATH}/ann", BOB))[0] == 404
        shared = (await get(live, f"{PATH}/narrator", BOB))[1]
        assert shared["shared"] is True
        assert "consent" not in shared
        assert (await delete(live, "ann", BOB))[0] == 404
        assert (await rename(live, "ann", {"name": "mine"}, BOB))[0] == 404
        assert (await delete(live, "narrator", BOB))[0] == 403
        assert (await delete(live, "ada", ALICE))[0] == 403
        async with live.http() as http:
            for headers, name, cloned in ((ALICE, "ann", True), (BOB, "ann", False), (BOB, "narrator", True)):
                body = {"input": "Hello.", "voice": name}
                assert (await http.post("/v1/audio/speech", json=body, headers=headers)).status_code == 200
                assert (live.engine.requests[-1].voice is not None) == cloned
        assert (await add(live, audio=None, headers=BOB, speaker_embedding=NUMBERS))[0] == 200
        assert (await delete(live, "ann", ALICE))[0] == 200
        assert (await get(live, f"{PATH}/ann", BOB))[0] == 200


async def test_browser_receives_neither_consent_nor_transcript(tmp_path: Path) -> None:
    async with live_server(cloning_engine(), voices__folder=str(tmp_path), auth__api_keys=KEYS) as live:
        assert (await add(live, headers=ALICE, ref_text="My secret."))[0] == 200
        async with live.http() as http:
            token = {"X-API-Key": (await http.post("/v1/tokens", headers=ALICE)).json()["token"]}
            for path in (PATH, "/v1/voices", f"{PATH}/ann"):
                assert "secret" in (await http.get(path, headers=ALICE)).text
                told = (await http.get(path, headers=token)).text
                assert "ann" in told
                assert "secret" not in told
                assert "she agreed" not in told
        changeable = [(await get(live, PATH, headers))[1]["can_change"] for headers in (ALICE, token)]
        assert changeable == [True, False]
        status, refused = await rename(live, "ann", {"name": "anna"}, token)
        assert (status, refused["error"]["code"]) == (403, "insufficient_scope")


def voice_of_operator(name: str) -> StoredVoice:
    embedding = np.zeros(EMBEDDING_SIZE, np.float32).tobytes()
    manifest = VoiceManifest(name=name, owner=SHARED, consent="ours", source="embedding")
    return StoredVoice(manifest, type(voice("x").clone)(embedding=embedding))


async def test_embedding_of_stored_voice_makes_the_same_voice(live: LiveServer) -> None:
    await add(live, ref_text="Hello there.")
    status, told = await get(live, f"{PATH}/ann/embedding")
    assert (status, told["name"], told["model"]) == (200, "ann", "a fake base")
    await add(live, "copy", audio=None, speaker_embedding=json.dumps(told["embedding"]))
    ann, copy = (live.speech.voices.find("local", name) for name in ("ann", "copy"))
    assert ann is not None
    assert copy is not None
    assert copy.clone.embedding == ann.clone.embedding
    assert len(told["embedding"]) == EMBEDDING_SIZE


async def test_embedding_is_refused_with_reason(live: LiveServer) -> None:
    live.speech.voices.add(StoredVoice(VoiceManifest(name="bare"), ClonedVoice(embedding=b"")))
    for name, code, words in (
        ("ada", (400, "invalid_request"), "voice 'ada' belongs to the model and has no speaker embedding"),
        ("bare", (400, "invalid_request"), "voice 'bare' has no speaker embedding"),
        ("nobody", (404, "voice_not_found"), "voice 'nobody' is unknown"),
    ):
        status, told = await get(live, f"{PATH}/{name}/embedding")
        assert (status, told["error"]["code"]) == code
        assert (told["error"]["message"], told["error"]["param"]) == (words, "name")


async def test_embedding_needs_the_key_of_the_voice(tmp_path: Path) -> None:
    async with live_server(cloning_engine(), voices__folder=str(tmp_path), auth__api_keys=KEYS) as live:
        await add(live, headers=ALICE)
        live.speech.voices.add(voice_of_operator("shared"))
        assert (await get(live, f"{PATH}/ann/embedding", ALICE))[0] == 200
        assert (await get(live, f"{PATH}/ann/embedding", BOB))[0] == 404
        assert (await get(live, f"{PATH}/shared/embedding", BOB))[0] == 200
        assert (await get(live, f"{PATH}/ann/embedding"))[0] == 401
        async with live.http() as http:
            token = {"X-API-Key": (await http.post("/v1/tokens", headers=ALICE)).json()["token"]}
        status, told = await get(live, f"{PATH}/ann/embedding", token)
        assert (status, told["error"]["code"]) == (403, "insufficient_scope")


async def test_voice_of_another_model_is_refused_with_reason(live: LiveServer, tmp_path: Path) -> None:
    VoiceStore(tmp_path).add(voice("foreign", owner="local"))
    async with live.http() as http:
        answer = await http.post("/v1/audio/speech", json={"input": "Hello.", "voice": "foreign"})
    assert answer.status_code == 400
    assert "64 numbers, a fake base takes 8" in answer.json()["error"]["message"]


async def test_limits_of_the_store_are_named(tmp_path: Path) -> None:
    flags = {"voices__folder": str(tmp_path), "voices__max_voices_per_key": 1}
    async with live_server(cloning_engine(), **flags) as live:
        assert (await add(live, audio=None, speaker_embedding=NUMBERS))[0] == 200
        status, told = await add(live, "ben2", audio=None, speaker_embedding=NUMBERS)
    assert (status, told["error"]["code"], told["error"]["param"]) == (400, "limit_exceeded", "name")
    assert "max_voices_per_key is 1" in told["error"]["message"]


async def test_model_without_cloning_refuses_a_clone(tmp_path: Path) -> None:
    engine = cloning_engine(can_clone=False, can_encode=False)
    async with live_server(engine, voices__folder=str(tmp_path)) as live:
        for audio, fields in ((WAV, {}), (None, {"speaker_embedding": NUMBERS})):
            status, told = await add(live, audio=audio, **fields)
            assert (status, told["error"]["code"]) == (400, "invalid_request")
            assert "a fake base does not" in told["error"]["message"]


async def test_a_disk_that_fails_is_our_fault(
    live: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", fail)
    status, told = await add(live, audio=None, speaker_embedding=NUMBERS)
    assert (status, told["error"]["code"]) == (500, "internal_error")
    assert "no space left" not in told["error"]["message"]
    assert (await get(live, PATH))[1]["uploaded_voices"] == []


async def test_servers_that_share_a_folder_agree(tmp_path: Path) -> None:
    folder = {"voices__folder": str(tmp_path)}
    async with live_server(cloning_engine(), **folder) as one, live_server(cloning_engine(), **folder) as other:
        assert (await add(one, audio=None, speaker_embedding=NUMBERS))[0] == 200
        assert (await add(other, audio=None, speaker_embedding=NUMBERS))[0] == 409
        assert (await get(other, PATH))[1]["voices"] == ["ada", "ben", "ann"]
        async with other.session() as client:
            assert (await speak(client, "Hello.", voice="ann")).done.status == "completed"
            assert not isinstance(other.engine.requests[-1].voice, str)
            assert (await delete(one, "ann"))[0] == 200
            await client.send(ev.ResponseCreate(settings=ev.NativeSpeechSettings(voice="ann"), text="Again.", end=True))
            refused = await anext(aiter(client))
            assert isinstance(refused, ev.ErrorEvent)
            assert refused.code == "unknown_voice"


async def test_a_restart_keeps_the_voices(tmp_path: Path) -> None:
    for _ in range(2):
        async with live_server(cloning_engine(), voices__folder=str(tmp_path)) as live:
            await add(live, audio=None, speaker_embedding=NUMBERS)
            assert (await get(live, PATH))[1]["voices"] == ["ada", "ben", "ann"]


CREATED_S = 1_700_000_000
MODEL = BASE_INFO.model
BUILT_IN = ["ada", "ben"]


@pytest.fixture
async def vendors(tmp_path: Path) -> AsyncIterator[LiveServer]:
    async with live_server(cloning_engine(), voices__folder=str(tmp_path), auth__api_keys=KEYS) as server:
        store(server, "Narrator", "alice", "A warm low voice.")
        store(server, "guest", SHARED)
        yield server


def store(vendors: LiveServer, name: str, owner: str, description: str = "") -> None:
    model = vendors.engine.info.model
    about = VoiceManifest(
        name=name, owner=owner, model=model, created_s=CREATED_S, consent="yes", description=description
    )
    vendors.speech.voices.add(StoredVoice(about, voice(name).clone))


async def get_list(vendors: LiveServer, path: str, headers: dict[str, str] | None = ALICE) -> dict[str, Any]:
    async with vendors.http() as http:
        answer = await http.get(path, headers=headers)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def error(vendors: LiveServer, path: str, headers: dict[str, str] | None = ALICE) -> tuple[int, str | None, str]:
    async with vendors.http() as http:
        answer = await http.get(path, headers=headers)
    told = answer.json()["error"]
    return answer.status_code, told["param"], told["message"]


async def names(vendors: LiveServer, path: str, headers: dict[str, str] = ALICE) -> list[str]:
    told = await get_list(vendors, path, headers)
    return [each["name"] for each in told.get("voices") or told.get("data") or []]


async def test_elevenlabs_search_lists_built_in_own_and_shared_voices(vendors: LiveServer) -> None:
    told = await get_list(vendors, "/v2/voices?include_total_count=true")
    assert (told["has_more"], told["total_count"], told["next_page_token"]) == (False, 4, None)
    assert told["voices"][1] == {
        "voice_id": "ben",
        "name": "ben",
        "category": "premade",
        "description": "a higher hum",
        "labels": {},
        "is_owner": False,
        "created_at_unix": None,
        "verified_languages": [{"language": language, "model_id": MODEL} for language in ("en", "de")],
    }
    narrator = told["voices"][2]
    assert (narrator["voice_id"], narrator["category"], narrator["is_owner"]) == ("Narrator", "cloned", True)
    assert (narrator["created_at_unix"], narrator["description"]) == (CREATED_S, "A warm low voice.")
    assert await names(vendors, "/v2/voices", BOB) == [*BUILT_IN, "guest"]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("search=WARM", ["Narrator"]),
        ("search=gue", ["guest"]),
        ("search=nobody", []),
        ("voice_ids=ben&voice_ids=guest&voice_ids=zoe", ["ben", "guest"]),
        ("category=cloned", ["Narrator", "guest"]),
        ("category=premade", BUILT_IN),
        ("sort=name", ["ada", "ben", "guest", "Narrator"]),
        ("sort=name&sort_direction=desc", ["Narrator", "guest", "ben", "ada"]),
        ("sort=created_at_unix&sort_direction=asc", [*BUILT_IN, "Narrator", "guest"]),
    ],
)
async def test_elevenlabs_search_filters_and_sorts(vendors: LiveServer, query: str, found: list[str]) -> None:
    assert await names(vendors, f"/v2/voices?{query}") == found


@pytest.mark.parametrize(
    ("path", "size", "after"), [("/v2/voices", "page_size", "next_page_token"), ("/voices", "limit", "starting_after")]
)
async def test_pages_hold_each_voice_once(vendors: LiveServer, path: str, size: str, after: str) -> None:
    seen, cursor, num_pages = [], "", 0
    while True:
        page = await get_list(vendors, f"{path}?{size}=3{cursor}")
        seen += [each["name"] for each in page.get("voices", page.get("data"))]
        num_pages += 1
        if not page["has_more"]:
            break
        cursor = f"&{after}={page.get('next_page_token') or page['next_page']}"
    assert (seen, num_pages) == ([*BUILT_IN, "Narrator", "guest"], 2)
    assert await names(vendors, f"{path}?{after}=guest") == []


async def test_cartesia_pages_backwards(vendors: LiveServer) -> None:
    told = await get_list(vendors, "/voices?limit=1&ending_before=Narrator")
    assert ([each["id"] for each in told["data"]], told["has_more"]) == (["ben"], True)


async def test_cartesia_lists_voices_in_its_shape(vendors: LiveServer) -> None:
    told = await get_list(vendors, "/voices?q=narr")
    assert told == {
        "data": [
            {
                "id": "Narrator",
                "name": "Narrator",
                "description": "A warm low voice.",
                "tagline": "",
                "language": "en",
                "locales": [{"locale": "en", "is_native": True}, {"locale": "de", "is_native": False}],
                "is_owner": True,
                "access": "private",
                "visibility": "owner",
                "created_at": "2023-11-14T22:13:20Z",
                "gender": None,
                "country": None,
            }
        ],
        "has_more": False,
        "next_page": None,
    }
    assert await names(vendors, "/voices?is_owner=true") == ["Narrator"]
    assert await names(vendors, "/voices?is_owner=false") == [*BUILT_IN, "guest"]
    shared = (await get_list(vendors, "/voices?q=guest"))["data"][0]
    assert (shared["access"], shared["visibility"], shared["is_owner"]) == ("public", "all", False)


@pytest.mark.parametrize(
    ("path", "param", "words"),
    [
        ("/v2/voices?page_size=0", "page_size", "1 to 100, is '0'"),
        ("/v2/voices?page_size=ten", "page_size", "is 'ten'"),
        ("/v2/voices?next_page_token=zoe", "next_page_token", "'zoe'"),
        ("/v2/voices?sort=age", "sort", "is 'age'"),
        ("/v2/voices?sort_direction=up", "sort_direction", "is 'up'"),
        ("/voices?limit=101", "limit", "is '101'"),
        ("/voices?starting_after=zoe", "starting_after", "'zoe'"),
    ],
)
async def test_bad_queries_are_refused_by_name(vendors: LiveServer, path: str, param: str, words: str) -> None:
    status, named, message = await error(vendors, path)
    assert (status, named) == (400, param)
    assert words in message


@pytest.mark.parametrize(
    "path", ["/v2/voices", "/voices", "/open-webui/v1/audio/voices", "/open-webui/v1/audio/models"]
)
async def test_lists_need_a_key(vendors: LiveServer, path: str) -> None:
    assert (await error(vendors, path, None))[0] == 401


async def test_open_webui_gets_objects_and_others_names(vendors: LiveServer) -> None:
    objects = await get_list(vendors, "/open-webui/v1/audio/voices")
    assert objects["voices"] == [{"id": name, "name": name} for name in (*BUILT_IN, "Narrator", "guest")]
    assert (await get_list(vendors, "/v1/audio/voices"))["voices"] == [*BUILT_IN, "Narrator", "guest"]
    models = await get_list(vendors, "/open-webui/v1/audio/models")
    assert models["models"] == [{"id": MODEL, "name": MODEL}]


async def test_open_webui_base_path_serves_the_rest_of_the_api(vendors: LiveServer) -> None:
    base = "/open-webui/v1"
    async with vendors.http() as http:
        body = {"model": "tts-1", "voice": "ada", "input": "Hello there."}
        spoken = await http.post(f"{base}/audio/speech", json=body, headers=ALICE)
        assert (spoken.status_code, spoken.headers["content-type"]) == (200, "audio/mpeg")
        assert (await http.post(f"{base}/audio/speech", json=body)).status_code == 401
        assert (await http.get(f"{base}/audio/voices/ada", headers=ALICE)).json()["built_in"] is True
        lost = await http.get(f"{base}/nothing", headers=ALICE)
        assert (lost.status_code, lost.json()["error"]["code"]) == (404, "unknown_path")
        path = f"{base}/text-to-speech/ada?output_format=pcm_16000"
        assert (await http.post(path, json={"text": "Hello."}, headers=ALICE)).status_code == 200
    assert (await get_list(vendors, f"{base}/models"))["data"][0]["id"] == MODEL
    client = await open_session(f"{vendors.url}{base}/speech", api_key=ALICE["X-API-Key"])
    assert (await speak(client, "Hello.")).done.status == "completed"
    await client.aclose()
    with pytest.raises(InvalidStatus) as lost_socket:
        await open_session(f"{vendors.url}{base}/nothing", api_key=ALICE["X-API-Key"])
    assert b"unknown_path" in lost_socket.value.response.body
