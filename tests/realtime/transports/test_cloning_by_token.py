"""A token speaks with the voices that are there: every path that takes a voice from the request needs an API key."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from websockets.asyncio.client import connect

from tests.realtime.cloning import EMBEDDING_SIZE, cloning_engine
from tests.realtime.live_server import LiveServer, live_server
from tests.realtime.references.fake_network import answer, web_server
from tests.realtime.transports.test_speech_cloning import WAV, data_uri

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
async def live(tmp_path: Path) -> AsyncIterator[LiveServer]:
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


async def post(live: LiveServer, path: str, key: str, **content: Any) -> tuple[int, dict[str, Any]]:
    async with live.http() as http:
        told = await http.post(path, headers={"X-API-Key": key}, **content)
    is_json = told.headers["content-type"] == "application/json"
    return told.status_code, told.json() if is_json else {}


def refusal(body: dict[str, Any]) -> Refusal:
    error = body.get("error")
    return Refusal(error["code"], error["message"], error["param"]) if error else OK


async def speech(live: LiveServer, key: str, fields: dict[str, Any]) -> Refusal:
    return refusal((await post(live, "/v1/audio/speech", key, json={"input": TEXT, **fields}))[1])


async def open_webui(live: LiveServer, key: str, fields: dict[str, Any]) -> Refusal:
    return refusal((await post(live, "/open-webui/v1/audio/speech", key, json={"input": TEXT, **fields}))[1])


async def batch_item(live: LiveServer, key: str, fields: dict[str, Any]) -> Refusal:
    body = {"items": [{"input": TEXT, **fields}]}
    return refusal((await post(live, "/v1/audio/speech/batch", key, json=body))[1]["results"][0])


async def batch_default(live: LiveServer, key: str, fields: dict[str, Any]) -> Refusal:
    body = {"items": [{"input": TEXT}], **fields}
    return refusal((await post(live, "/v1/audio/speech/batch", key, json=body))[1]["results"][0])


async def socket(live: LiveServer, key: str, fields: dict[str, Any]) -> Refusal:
    headers = {"Authorization": f"Bearer {key}"}
    async with connect(f"{live.url}/v1/audio/speech/stream", additional_headers=headers, proxy=None) as line:
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


async def token(live: LiveServer) -> str:
    return str((await post(live, "/v1/tokens", KEY))[1]["token"])


@pytest.mark.parametrize("ask", PATHS)
@pytest.mark.parametrize("kind", FIELDS)
async def test_token_clones_and_fetches_nothing(live: LiveServer, host: WebHost, ask: Ask, kind: str) -> None:
    fields: dict[str, Any] = {
        "ref_audio": {"ref_audio": data_uri(WAV)},
        "address": {"ref_audio": host.url},
        "speaker_embedding": {"speaker_embedding": [0.0] * EMBEDDING_SIZE},
    }[kind]
    shown = await token(live)
    assert await ask(live, shown, {}) == OK
    refused = await ask(live, shown, fields)
    assert (refused.code, refused.param) == ("insufficient_scope", next(iter(fields)))
    assert next(iter(fields)) in refused.message
    assert "API key" in refused.message
    assert (live.engine.samples, host.requests) == ([], [])
    assert all(request.voice is None or isinstance(request.voice, str) for request in live.engine.requests)
    assert await ask(live, KEY, fields) == OK
    assert not isinstance(live.engine.requests[-1].voice, str)


@pytest.mark.parametrize(
    "content",
    [
        {"files": {"audio_sample": ("a.wav", WAV)}, "data": {"name": "ann", "consent": "yes"}},
        {"data": {"name": "ann", "consent": "yes", "speaker_embedding": str([0.0] * EMBEDDING_SIZE)}},
    ],
)
@pytest.mark.parametrize("path", ["/v1/audio/voices", "/open-webui/v1/audio/voices"])
async def test_token_uploads_no_voice(live: LiveServer, path: str, content: dict[str, Any]) -> None:
    status, body = await post(live, path, await token(live), **content)
    assert (status, body["error"]["code"]) == (403, "insufficient_scope")
    assert live.engine.samples == []


@pytest.mark.parametrize("path", ["/v1/audio/speech", "/v1/audio/speech/batch"])
async def test_body_of_a_token_has_no_room_for_a_recording(live: LiveServer, path: str) -> None:
    """It takes no place of those who upload."""
    assert len(LARGE) > live.speech.config.limits.max_message_bytes
    status, body = await post(live, path, await token(live), json={"input": TEXT, "ref_audio": LARGE})
    assert (status, body["error"]["code"]) == (413, "message_too_big")
    assert body["error"]["message"].endswith("; ref_audio needs an API key")
