"""The voices of this server in the shapes of vendors, over a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from realtime.client import open_session
from sessions.voices.voice import SHARED, StoredVoice, VoiceManifest
from tests.realtime.cloning import BASE_INFO, cloning_engine
from tests.realtime.live_server import LiveServer, live_server, speak
from tests.sessions.voices.voices import voice

ALICE, BOB = {"xi-api-key": "0123456789abcdef"}, {"xi-api-key": "fedcba9876543210"}
KEYS = "alice:0123456789abcdef,bob:fedcba9876543210"
CREATED_S = 1_700_000_000
MODEL = BASE_INFO.model
BUILT_IN = ["ada", "ben"]


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[LiveServer]:
    async with live_server(cloning_engine(), voices__folder=str(tmp_path), auth__api_keys=KEYS) as server:
        store(server, "Narrator", "alice", "A warm low voice.")
        store(server, "guest", SHARED)
        yield server
        await server.freed()


def store(live: LiveServer, name: str, owner: str, description: str = "") -> None:
    model = live.engine.info.model
    about = VoiceManifest(
        name=name, owner=owner, model=model, created_s=CREATED_S, consent="yes", description=description
    )
    live.speech.voices.add(StoredVoice(about, voice(name).clone))


async def get(live: LiveServer, path: str, headers: dict[str, str] | None = ALICE) -> dict[str, Any]:
    async with live.http() as http:
        answer = await http.get(path, headers=headers)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def error(live: LiveServer, path: str, headers: dict[str, str] | None = ALICE) -> tuple[int, str | None, str]:
    async with live.http() as http:
        answer = await http.get(path, headers=headers)
    told = answer.json()["error"]
    return answer.status_code, told["param"], told["message"]


async def names(live: LiveServer, path: str, headers: dict[str, str] = ALICE) -> list[str]:
    told = await get(live, path, headers)
    return [each["name"] for each in told.get("voices") or told.get("data") or []]


async def test_elevenlabs_search_lists_built_in_own_and_shared_voices(live: LiveServer) -> None:
    told = await get(live, "/v2/voices?include_total_count=true")
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
    assert await names(live, "/v2/voices", BOB) == [*BUILT_IN, "guest"]


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
async def test_elevenlabs_search_filters_and_sorts(live: LiveServer, query: str, found: list[str]) -> None:
    assert await names(live, f"/v2/voices?{query}") == found


@pytest.mark.parametrize(
    ("path", "size", "after"), [("/v2/voices", "page_size", "next_page_token"), ("/voices", "limit", "starting_after")]
)
async def test_pages_hold_each_voice_once(live: LiveServer, path: str, size: str, after: str) -> None:
    seen, cursor, num_pages = [], "", 0
    while True:
        page = await get(live, f"{path}?{size}=3{cursor}")
        seen += [each["name"] for each in page.get("voices", page.get("data"))]
        num_pages += 1
        if not page["has_more"]:
            break
        cursor = f"&{after}={page.get('next_page_token') or page['next_page']}"
    assert (seen, num_pages) == ([*BUILT_IN, "Narrator", "guest"], 2)
    assert await names(live, f"{path}?{after}=guest") == []


async def test_cartesia_pages_backwards(live: LiveServer) -> None:
    told = await get(live, "/voices?limit=1&ending_before=Narrator")
    assert ([each["id"] for each in told["data"]], told["has_more"]) == (["ben"], True)


async def test_cartesia_lists_voices_in_its_shape(live: LiveServer) -> None:
    told = await get(live, "/voices?q=narr")
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
    assert await names(live, "/voices?is_owner=true") == ["Narrator"]
    assert await names(live, "/voices?is_owner=false") == [*BUILT_IN, "guest"]
    shared = (await get(live, "/voices?q=guest"))["data"][0]
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
async def test_bad_queries_are_refused_by_name(live: LiveServer, path: str, param: str, words: str) -> None:
    status, named, message = await error(live, path)
    assert (status, named) == (400, param)
    assert words in message


@pytest.mark.parametrize(
    "path", ["/v2/voices", "/voices", "/open-webui/v1/audio/voices", "/open-webui/v1/audio/models"]
)
async def test_lists_need_a_key(live: LiveServer, path: str) -> None:
    assert (await error(live, path, None))[0] == 401


async def test_open_webui_gets_objects_and_others_names(live: LiveServer) -> None:
    objects = await get(live, "/open-webui/v1/audio/voices")
    assert objects["voices"] == [{"id": name, "name": name} for name in (*BUILT_IN, "Narrator", "guest")]
    assert (await get(live, "/v1/audio/voices"))["voices"] == [*BUILT_IN, "Narrator", "guest"]
    models = await get(live, "/open-webui/v1/audio/models")
    assert models["models"] == [{"id": MODEL, "name": MODEL}]


async def test_open_webui_base_path_serves_the_rest_of_the_api(live: LiveServer) -> None:
    base = "/open-webui/v1"
    async with live.http() as http:
        body = {"model": "tts-1", "voice": "ada", "input": "Hello there."}
        spoken = await http.post(f"{base}/audio/speech", json=body, headers=ALICE)
        assert (spoken.status_code, spoken.headers["content-type"]) == (200, "audio/mpeg")
        assert (await http.post(f"{base}/audio/speech", json=body)).status_code == 401
        assert (await http.get(f"{base}/audio/voices/ada", headers=ALICE)).json()["built_in"] is True
        lost = await http.get(f"{base}/nothing", headers=ALICE)
        assert (lost.status_code, lost.json()["error"]["code"]) == (404, "unknown_path")
        path = f"{base}/text-to-speech/ada?output_format=pcm_16000"
        assert (await http.post(path, json={"text": "Hello."}, headers=ALICE)).status_code == 200
    assert (await get(live, f"{base}/models"))["data"][0]["id"] == MODEL
    client = await open_session(f"{live.url}{base}/speech", api_key=ALICE["xi-api-key"])
    assert (await speak(client, "Hello.")).done.status == "completed"
    await client.aclose()
    with pytest.raises(InvalidStatus) as lost_socket:
        await open_session(f"{live.url}{base}/nothing", api_key=ALICE["xi-api-key"])
    assert b"unknown_path" in lost_socket.value.response.body
