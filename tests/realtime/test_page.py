"""The page, and the application under a server that is not ours."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import uvicorn
from starlette.routing import Mount

from realtime.app import create_app
from realtime.client import open_session
from realtime.config import load_config
from realtime.metrics import ServerMetrics
from realtime.transports.listening_sockets import listening_sockets
from tests.fakes.engine import FakeSpeechEngine
from tests.realtime.live_server import QUICK, live_server, speak, until

KEY = "a-key-of-enough-characters"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "index.html").write_text("<title>voicewire</title>")
    (tmp_path / "page" / "audio.js").write_text("export {};")
    (tmp_path / "secret.txt").write_text("not for anyone")
    return tmp_path / "page"


async def test_the_page_is_served_and_nothing_beside_it(folder: Path) -> None:
    async with live_server(listen__page=str(folder)) as live, live.http() as http:
        assert "<title>voicewire" in (await http.get("/")).text
        script = await http.get("/audio.js")
        assert script.headers["content-type"].startswith(("text/javascript", "application/javascript"))
        for path in ("/../secret.txt", "/%2e%2e/secret.txt", "/..%2fsecret.txt", "/nothing.js"):
            answer = await http.get(path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_path")
        rebound = await http.get("/", headers={"Host": "rebound.example"})
        assert (rebound.status_code, rebound.json()["error"]["code"]) == (403, "forbidden_host")
        assert (await http.get("/healthz")).status_code == 200


async def test_an_address_that_takes_posts_is_no_page(folder: Path) -> None:
    async with live_server(listen__page=str(folder)) as live, live.http() as http:
        for path in ("/v1/audio/speech", "/v1/tokens", "/v1/text-to-speech/zoe/stream", "/tts/bytes"):
            answer = await http.get(path)
            assert (answer.status_code, answer.headers["Allow"]) == (405, "POST")
            assert "method_not_allowed" in str(answer.json())
        assert (await http.get("/v1/tokens")).json()["error"]["type"] == "client_error"
        assert (await http.get("/v1/text-to-speech/zoe/stream")).json().keys() == {"detail"}  # as ElevenLabs' API does
        for path in ("/", "/v1/voices", "/audio.js"):
            answer = await http.delete(path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed")
        assert (await http.get("/v1/audio/nothing")).status_code == 404


async def test_with_keys_the_page_is_for_anyone(folder: Path) -> None:
    async with live_server(listen__page=str(folder), auth__api_keys=f"a:{KEY}") as live, live.http() as http:
        assert (await http.get("/", headers={"Host": "tts.example"})).status_code == 200
        assert (await http.get("/v1/voices")).status_code == 401


async def test_the_application_runs_under_any_asgi_server() -> None:
    config = load_config(flags={"listen.port": 0})
    app = create_app(config, FakeSpeechEngine(QUICK))
    sockets = listening_sockets(config.listen)
    server = uvicorn.Server(uvicorn.Config(app, ws="websockets-sansio", lifespan="on", log_config=None))
    serving = asyncio.create_task(server.serve(sockets))
    await until(lambda: server.started)
    async with await open_session(f"ws://127.0.0.1:{sockets[0].getsockname()[1]}") as client:
        assert (await speak(client, "Hello there.")).done.status == "completed"
    server.should_exit = True
    await serving


async def test_the_page_that_comes_along_is_served_with_its_policy() -> None:
    async with live_server() as live, live.http() as http:
        page = await http.get("/")
        assert "<title>voicewire</title>" in page.text
        policy = dict(part.split(" ", 1) for part in page.headers["content-security-policy"].split("; "))
        assert (policy["default-src"], policy["connect-src"]) == ("'none'", "'self'")
        assert policy["script-src"] == "'self' 'wasm-unsafe-eval'"
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["referrer-policy"] == "no-referrer"
        tag = (await http.get("/session.js")).headers["etag"]
        assert (await http.get("/session.js", headers={"If-None-Match": tag})).status_code == 304
        icon = await http.get("/icon.svg")
        assert icon.headers["content-type"] == "image/svg+xml"


async def test_the_page_shadows_no_other_address() -> None:
    """It is mounted last, whatever routes come to stand before it."""
    app = create_app(load_config(), FakeSpeechEngine(QUICK))
    assert [route for route in app.routes if isinstance(route, Mount) and route.path == ""] == app.routes[-1:]
    async with live_server() as live, live.http() as http:
        for path in ("/healthz", "/readyz", "/metrics", "/v1/voices"):
            assert (await http.get(path)).status_code == 200


async def test_internal_error_is_json_without_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    async with live_server() as live, live.http() as http:
        monkeypatch.setattr(ServerMetrics, "exposition", fail)
        answer = await http.get("/metrics")
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
        assert "secret" not in answer.text


def fail(_: ServerMetrics) -> bytes:
    raise RuntimeError("secret")
