"""Lexicons over HTTP, and named by settings."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from realtime.protocol import events as ev
from sessions.lexicon_store import LexiconManifest, LexiconRecord, LexiconStore
from sessions.text.lexicons.files import MAX_FILE_BYTES, ParsedLexicon
from sessions.text.lexicons.lexicon import LexiconEntry
from tests.realtime.live_server import LiveServer, hear, live_server, next_of, speak

KEYS = "alice:0123456789abcdef,bob:fedcba9876543210"
ALICE, BOB = {"X-API-Key": "0123456789abcdef"}, {"X-API-Key": "fedcba9876543210"}
FILE = '{"language": "en", "entries": {"NGINX": "engine x"}}'
PLS = """<lexicon version="1.0" xmlns="http://www.w3.org/2005/01/pronunciation-lexicon" xml:lang="en">
<lexeme><grapheme>W3C</grapheme><alias>World Wide Web</alias></lexeme>
<lexeme><grapheme>tomato</grapheme><phoneme>5</phoneme></lexeme></lexicon>"""


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[LiveServer]:
    async with live_server(voices__folder=str(tmp_path)) as server:
        yield server


async def call(live: LiveServer, method: str, name: str = "", body: str = "", headers: Any = None) -> tuple[int, Any]:
    async with live.http() as http:
        path = f"/v1/lexicons/{name}" if name else "/v1/lexicons"
        answer = await http.request(method, path, content=body, headers=headers)
    return answer.status_code, answer.json()


async def test_stored_lexicon_is_listed_spoken_and_deleted(live: LiveServer) -> None:
    status, answer = await call(live, "PUT", "products", FILE)
    assert (status, answer["lexicon"]["entries"], answer["lexicon"]["language"]) == (200, 1, "en")
    _, listed = await call(live, "GET")
    assert [lexicon["name"] for lexicon in listed["lexicons"]] == ["products"]
    async with live.session() as client:
        spoken = await speak(client, "Ask NGINX now.", lexicons=("products",), word_times=True)
        words = [word for one in spoken.messages if isinstance(one, ev.ResponseWords) for word in one.words]
        assert spoken.created.settings.lexicons == ("products",)
        assert [word.text for word in words] == ["Ask", "NGINX", "now."]
        assert live.engine.requests[-1].text == "Ask engine x now."
        await call(live, "PUT", "products", FILE.replace("engine x", "N G"))
        await speak(client, "Ask NGINX now.", "again", lexicons=("products",))
        assert live.engine.requests[-1].text == "Ask N G now."
    assert await call(live, "DELETE", "products") == (200, {"success": True})
    assert await call(live, "GET") == (200, {"lexicons": []})


async def test_versions_are_listed_and_named(live: LiveServer) -> None:
    _, first = await call(live, "PUT", "products", FILE)
    _, second = await call(live, "PUT", "products", FILE.replace("engine x", "N G"))
    old, new = first["lexicon"]["version"], second["lexicon"]["version"]
    _, shown = await call(live, "GET", "products")
    assert (shown["version"], {each["version"] for each in shown["versions"]}) == (new, {old, new})
    status, answer = await call(live, "GET", "none")
    assert (status, answer["error"]["code"]) == (404, "lexicon_not_found")
    async with live.session() as client:
        await speak(client, "Ask NGINX.", lexicons=(f"products@{old}",))
    assert live.engine.requests[-1].text == "Ask engine x."


async def test_session_names_lexicons_for_its_responses(live: LiveServer) -> None:
    await call(live, "PUT", "w3c", PLS)
    async with live.session() as client:
        await client.send(ev.SessionUpdate(settings=ev.NativeSpeechSettings(lexicons=("w3c",))))
        updated = await next_of(client, ev.SessionUpdated)
        assert updated.settings.lexicons == ("w3c",)
        await speak(client, "W3C")
        await speak(client, "W3C", "without", lexicons=())
    assert [request.text for request in live.engine.requests] == ["World Wide Web", "W3C"]


async def test_unknown_lexicon_fails_its_response(live: LiveServer) -> None:
    async with live.session() as client:
        await client.send(ev.ResponseCreate(response_id="r", settings=ev.NativeSpeechSettings(lexicons=("nope",))))
        error = await next_of(client, ev.ErrorEvent)
        assert (error.code, error.param, error.response_id) == ("unknown_lexicon", "lexicons", "r")
        many = ev.NativeSpeechSettings(lexicons=("nope",) * 5)
        await client.send(ev.ResponseCreate(response_id="s", settings=many))
        error = await next_of(client, ev.ErrorEvent)
        assert error.message == "lexicons has 5 names, at most 4 are allowed"
        await client.send(ev.ResponseCreate(response_id="t", text="Fine.", end=True))
        assert (await hear(client)).done.status == "completed"


@pytest.mark.parametrize(
    ("name", "body", "status", "code"),
    [
        ("ok", "nonsense", 400, "invalid_request"),
        ("ok", '<!DOCTYPE lexicon SYSTEM "file:///etc/passwd"><lexicon/>', 400, "invalid_request"),
        ("ok", "x" * (MAX_FILE_BYTES + 1), 413, "message_too_big"),
        (".hidden", FILE, 400, "invalid_request"),
    ],
)
async def test_file_that_cannot_be_stored_is_refused(
    live: LiveServer, name: str, body: str, status: int, code: str
) -> None:
    found, answer = await call(live, "PUT", name, body)
    assert (found, answer["error"]["code"]) == (status, code)
    assert await call(live, "GET") == (200, {"lexicons": []})


async def test_pls_tells_what_was_left_out(live: LiveServer) -> None:
    _, answer = await call(live, "PUT", "w3c", PLS)
    assert (answer["lexicon"]["entries"], answer["lexicon"]["left_out"]) == (1, 1)


async def test_keys_have_lexicons_of_their_own(tmp_path: Path) -> None:
    shared = ParsedLexicon("", [LexiconEntry(text="a", alias="b")])
    LexiconStore(tmp_path / "lexicons").put(LexiconRecord.build(LexiconManifest(name="all"), shared))
    async with live_server(voices__folder=str(tmp_path), auth__api_keys=KEYS) as live:
        assert (await call(live, "PUT", "mine", FILE))[0] == 401
        assert (await call(live, "PUT", "mine", FILE, ALICE))[0] == 200
        names = [lexicon["name"] for lexicon in (await call(live, "GET", headers=BOB))[1]["lexicons"]]
        assert names == ["all"]
        for name in ("mine", "all"):
            status, answer = await call(live, "DELETE", name, headers=BOB)
            assert (status, answer["error"]["code"]) == (404, "lexicon_not_found")
        async with live.session(api_key=BOB["X-API-Key"]) as client:
            await speak(client, "a", lexicons=("all",))
            settings = ev.NativeSpeechSettings(lexicons=("mine",))
            await client.send(ev.ResponseCreate(response_id="mine", settings=settings))
            assert (await next_of(client, ev.ErrorEvent)).code == "unknown_lexicon"
    assert [request.text for request in live.engine.requests] == ["b"]
