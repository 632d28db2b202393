"""ElevenLabs' pronunciation dictionaries: made, changed, read, and named by its wires."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from sessions.text.lexicons.files import MAX_FILE_BYTES, parse_lexicon
from sessions.text.lexicons.lexicon import LexiconEntry
from tests.realtime.live_server import LiveServer, live_server

KEYS = "alice:0123456789abcdef,bob:fedcba9876543210"
ALICE, BOB = {"xi-api-key": "0123456789abcdef"}, {"xi-api-key": "fedcba9876543210"}
RULE = {"type": "alias", "string_to_replace": "NGINX", "alias": "engine x"}
PHONETIC = {"type": "phoneme", "string_to_replace": "gif", "phoneme": "dʒɪf", "alphabet": "ipa"}
PLS = '<lexicon xml:lang="en"><lexeme><grapheme>W3C</grapheme><alias>World Wide</alias></lexeme></lexicon>'


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[LiveServer]:
    async with live_server(voices__folder=str(tmp_path), auth__api_keys=KEYS) as server:
        yield server


async def call(live: LiveServer, method: str, path: str = "", headers: Any = ALICE, **body: Any) -> tuple[int, Any]:
    async with live.http() as http:
        answer = await http.request(method, f"/v1/pronunciation-dictionaries{path}", headers=headers, **body)
    is_json = answer.headers["content-type"].startswith("application/json")
    return answer.status_code, answer.json() if is_json else answer.content


async def create(live: LiveServer, *rules: dict[str, Any], name: str = "Names") -> dict[str, Any]:
    status, made = await call(live, "POST", "/add-from-rules", json={"name": name, "rules": rules})
    assert status == 200
    return made


async def test_dictionary_of_rules_is_made_and_read(live: LiveServer) -> None:
    made = await create(live, RULE, PHONETIC)
    assert (made["name"], made["version_rules_num"], made["created_by"]) == ("Names", 2, "alice")
    _, shown = await call(live, "GET", f"/{made['id']}")
    assert shown["latest_version_id"] == made["version_id"]
    assert [rule["string_to_replace"] for rule in shown["rules"]] == ["NGINX", "gif"]
    assert shown["rules"][1]["phoneme"] == "dʒɪf"
    _, listed = await call(live, "GET")
    assert [each["id"] for each in listed["pronunciation_dictionaries"]] == [made["id"]]
    assert (await call(live, "GET", headers=BOB))[1]["pronunciation_dictionaries"] == []


async def test_rules_are_added_replaced_and_removed(live: LiveServer) -> None:
    made = await create(live, RULE)
    path = f"/{made['id']}"
    _, added = await call(live, "POST", f"{path}/add-rules", json={"rules": [RULE | {"alias": "N G"}, PHONETIC]})
    assert (added["id"], added["version_rules_num"]) == (made["id"], 2)
    assert added["version_id"] != made["version_id"]
    _, removed = await call(live, "POST", f"{path}/remove-rules", json={"rule_strings": ["gif"]})
    assert removed["version_rules_num"] == 1
    _, replaced = await call(live, "POST", f"{path}/set-rules", json={"rules": [RULE]})
    assert replaced["version_id"] == made["version_id"]
    status, pls = await call(live, "GET", f"{path}/{removed['version_id']}/download")
    assert status == 200
    assert parse_lexicon(pls).entries == [LexiconEntry(text="NGINX", alias="N G", match_case=True)]


async def test_dictionary_of_a_file_is_made(live: LiveServer) -> None:
    form = {"data": {"name": "W3C", "description": "of the web"}, "files": {"file": ("w3c.pls", PLS)}}
    status, made = await call(live, "POST", "/add-from-file", **form)
    assert (status, made["version_rules_num"], made["description"]) == (200, 1, "of the web")


async def test_list_comes_by_pages(live: LiveServer) -> None:
    names = [(await create(live, RULE, name=name))["id"] for name in ("b", "a", "c")]
    found, cursor = [], ""
    while len(found) < 3:
        query = f"?page_size=1&sort=name&sort_direction=ASCENDING&cursor={cursor}"
        _, page = await call(live, "GET", query)
        found += [each["id"] for each in page["pronunciation_dictionaries"]]
        cursor = page["next_cursor"]
        assert page["has_more"] == (len(found) < 3)
    assert found == [names[1], names[0], names[2]]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("POST", "/add-from-rules", {"content": "nonsense"}, 400, "not a JSON message"),
        ("POST", "/add-from-rules", {"json": {"name": "x", "rules": [{"type": "other"}]}}, 400, "type"),
        ("POST", "/add-from-rules", {"json": {"name": "", "rules": [RULE]}}, 400, "name has 0 characters, 1 to 200"),
        ("POST", "/add-from-rules", {"json": {"name": "x", "rules": [RULE | {"alias": ""}]}}, 400, "alias of entry 1"),
        (
            "POST",
            "/add-from-rules",
            {"json": {"name": "x", "rules": [RULE | {"word_boundaries": False}]}},
            400,
            "word_boundaries must be true",
        ),
        ("POST", "/add-from-rules", {"content": "x" * (MAX_FILE_BYTES + 1)}, 413, "at most 1048576 bytes"),
        ("POST", "/add-from-file", {"data": {"name": "x"}, "files": {"other": b""}}, 400, "file is missing"),
        ("POST", "/add-from-file", {"data": {"name": "x"}, "files": {"file": b"<speak/>"}}, 400, "root of the XML"),
        ("POST", "/none/add-rules", {"json": {"rules": [RULE]}}, 404, "dictionary 'none' is unknown"),
        ("GET", "/none", {}, 404, "dictionary 'none' is unknown"),
        ("GET", "/none/0123456789ab/download", {}, 404, "dictionary 'none@0123456789ab' is unknown"),
        ("GET", "?cursor=none", {}, 400, "cursor must be a dictionary of the list"),
        ("GET", "?page_size=1000", {}, 400, "page_size must be a whole number from 1 to 100"),
    ],
)
async def test_bad_request_is_refused_in_the_vendors_shape(
    live: LiveServer, method: str, path: str, body: dict[str, Any], status: int, message: str
) -> None:
    found, answer = await call(live, method, path, **body)
    assert found == status
    assert message in answer["detail"]["message"]


async def test_other_keys_cannot_change_a_dictionary(live: LiveServer) -> None:
    made = await create(live, RULE)
    status, _ = await call(live, "POST", f"/{made['id']}/add-rules", headers=BOB, json={"rules": [RULE]})
    assert status == 404
    assert (await call(live, "GET", headers={}))[0] == 401


async def test_locators_apply_to_http_requests(live: LiveServer) -> None:
    made = await create(live, RULE)
    locator = {"pronunciation_dictionary_id": made["id"], "version_id": made["version_id"]}
    async with live.http() as http:
        for path, body in (
            ("/v1/text-to-speech/clara", {"text": "Ask NGINX."}),
            ("/v1/text-to-dialogue", {"inputs": [{"text": "Ask NGINX.", "voice_id": "clara"}]}),
        ):
            given = body | {"pronunciation_dictionary_locators": [locator]}
            answer = await http.post(f"{path}?output_format=pcm_24000", json=given, headers=ALICE)
            assert answer.status_code == 200
            assert live.engine.requests[-1].text == "Ask engine x."
        unknown = given | {"pronunciation_dictionary_locators": [{"pronunciation_dictionary_id": "none"}]}
        answer = await http.post("/v1/text-to-dialogue?output_format=pcm_24000", json=unknown, headers=ALICE)
        assert (answer.status_code, answer.json()["detail"]["status"]) == (400, "unknown_lexicon")


async def test_locators_apply_to_the_first_message_of_a_socket(live: LiveServer) -> None:
    made = await create(live, RULE)
    locators = [{"pronunciation_dictionary_id": made["id"]}]
    address = f"{live.url}/v1/text-to-speech/clara/stream-input?output_format=pcm_24000"
    async with connect(address, additional_headers=ALICE, proxy=None) as socket:
        await socket.send(json.dumps({"text": " ", "pronunciation_dictionary_locators": locators}))
        await socket.send(json.dumps({"text": "Ask NGINX. "}))
        await socket.send(json.dumps({"text": ""}))
        messages = [json.loads(message) async for message in socket]
    assert messages[-1] == {"audio": None, "isFinal": True}
    assert live.engine.requests[-1].text == "Ask engine x. "
