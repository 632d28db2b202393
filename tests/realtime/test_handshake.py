"""Who is let in, over a real socket: refusals are HTTP answers, never an accept and a close."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.frames import Frame, Opcode

from realtime.client import open_session
from realtime.config import ConfigError
from realtime.config_sections import ListenSettings
from realtime.protocol import events as ev
from realtime.protocol.native import SUBPROTOCOL
from realtime.transports.listener import READ_BYTES, SpeechWebSocketProtocol
from realtime.transports.listening_sockets import TCP_NOTSENT_LOWAT, listening_sockets
from tests.fakes.engine import FakeScript, FakeSpeechEngine
from tests.realtime.certificates import self_signed
from tests.realtime.live_server import LiveServer, live_server, next_of, speak, until

KEY = "a-key-of-enough-characters"
TEXT = "Hello there."


async def refusal(url: str, **options: object) -> tuple[int, str, str | None]:
    """Status, error code and Retry-After of a handshake that must fail."""
    settings = {"compression": None, "proxy": None} | options
    with pytest.raises(InvalidStatus) as refused:
        await connect(url, **settings)  # type: ignore[arg-type]
    response = refused.value.response
    code = re.search(rb'"code":"(\w+)"', response.body or b"")
    return response.status_code, code.group(1).decode() if code else "", response.headers.get("Retry-After")


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Origin": "http://evil.example"}, "forbidden_origin"),
        ({"Origin": "null"}, "forbidden_origin"),
        ({"X-Forwarded-For": "10.0.0.1"}, "not_loopback"),
        ({"X-Real-IP": "10.0.0.1"}, "not_loopback"),
        ({"VIA": "1.1 proxy"}, "not_loopback"),
    ],
)
async def test_a_page_of_another_origin_is_refused(live: LiveServer, headers: dict[str, str], code: str) -> None:
    assert await refusal(live.url + "/v1/speech", additional_headers=headers) == (403, code, None)
    for path in (
        "/tts/websocket",
        "/v1/realtime",
        "/v1/text-to-speech/zoe/stream-input",
        "/v1/calls",
        "/v1/calls/telnyx",
    ):
        assert (await refusal(live.url + path, additional_headers=headers))[0] == 403
    async with live.http() as http:
        for path in ("/tts/bytes", "/v1/audio/speech", "/v1/tokens"):
            assert (await http.post(path, headers=headers, json={})).status_code == 403
        for path in ("/v1/voices", "/metrics"):
            answer = await http.get(path, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, code)


async def test_a_rebound_host_is_refused_everywhere_but_for_health(live: LiveServer) -> None:
    async with live.http() as http:
        headers = {"Host": "rebound.example"}
        for path in ("/v1/voices", "/metrics", "/"):
            assert (await http.get(path, headers=headers)).status_code in (403, 404)
        assert (await http.post("/v1/audio/speech", headers=headers, json={"input": TEXT})).status_code == 403
        assert (await http.get("/healthz", headers=headers)).status_code == 200
    reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
    writer.write(
        b"GET /v1/speech HTTP/1.1\r\nHost: rebound.example\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    assert b"403" in await reader.readline()
    writer.close()


async def test_the_servers_own_page_is_let_in(live: LiveServer) -> None:
    async with connect(
        live.url + "/v1/speech", origin=f"http://127.0.0.1:{live.port}", subprotocols=[SUBPROTOCOL], proxy=None
    ) as page:
        assert page.subprotocol == SUBPROTOCOL
        assert page.protocol.extensions == []


async def test_wrong_keys_are_refused_and_the_right_one_is_not() -> None:
    async with live_server(auth__api_keys=f"agent:{KEY}") as live:
        url = live.url + "/v1/speech"
        assert await refusal(url) == (401, "unauthorized", None)
        wrong = {"Authorization": "Bearer " + KEY[::-1]}
        assert await refusal(url, additional_headers=wrong) == (401, "unauthorized", None)
        async with live.session(KEY) as client:
            assert (await speak(client, TEXT)).done.status == "completed"
        offered = ["voicewire.v1", "voicewire.key." + KEY]
        async with connect(url, subprotocols=offered, proxy=None, origin="https://app.example") as page:  # type: ignore[list-item]
            assert page.subprotocol == SUBPROTOCOL
        async with live.http() as http:
            assert (await http.get("/v1/voices")).headers["WWW-Authenticate"] == "Bearer"
            assert (await http.get("/v1/voices", headers={"X-API-Key": KEY})).status_code == 200
            assert (await http.get("/healthz")).status_code == 200


async def test_no_log_holds_a_key(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with live_server(auth__api_keys=f"agent:{KEY}") as live:
        async with connect(f"{live.url}/v1/speech?api_key={KEY}", proxy=None):
            pass
        await refusal(f"{live.url}/v1/speech?api_key=not-{KEY}")
    ours = [record for record in caplog.records if not record.name.startswith(("websockets", "uvicorn", "httpcore"))]
    assert ours
    assert not any(KEY in str(vars(record)) for record in ours)


async def test_an_unknown_address_and_an_unknown_wire(live: LiveServer) -> None:
    assert (await refusal(live.url + "/v2/speech"))[:2] == (404, "unknown_path")
    other = await refusal(live.url + "/v1/speech", subprotocols=["graphql-ws"])
    assert other[:2] == (400, "unsupported_subprotocol")
    async with live.http() as http:
        answer = await http.get("/v1/nothing")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_path")


async def test_connections_are_limited_in_all_and_by_key(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(
        f'[[keys]]\nname = "one"\nkey = "{KEY}-1"\nmax_connections = 1\n[[keys]]\nname = "two"\nkey = "{KEY}-2"'
    )
    limits = {"limits__max_connections": 3, "limits__max_connections_per_key": 3}
    async with live_server(auth__keys_file=str(keys), **limits) as live:
        url = live.url + "/v1/speech"
        async with AsyncExitStack() as clients:
            await clients.enter_async_context(live.session(f"{KEY}-1"))
            one = {"X-API-Key": f"{KEY}-1"}
            assert await refusal(url, additional_headers=one) == (429, "too_many_connections", "1")
            for _ in range(2):
                await clients.enter_async_context(live.session(f"{KEY}-2"))
            two = {"X-API-Key": f"{KEY}-2"}
            assert await refusal(url, additional_headers=two) == (429, "too_many_connections", "1")
        await live.freed()
        async with live.session(f"{KEY}-1") as client:
            assert (await speak(client, TEXT)).done.status == "completed"


@pytest.mark.parametrize(("names", "share"), [("one", 4), ("one two", 2)])
async def test_key_takes_half_of_the_places_where_several_exist(names: str, share: int) -> None:
    keys = ",".join(f"{name}:{KEY}-{name}" for name in names.split())
    async with live_server(auth__api_keys=keys, limits__max_connections=4) as live, AsyncExitStack() as clients:
        for _ in range(share):
            await clients.enter_async_context(live.session(f"{KEY}-one"))
        refused = await refusal(live.url + "/v1/speech", additional_headers={"X-API-Key": f"{KEY}-one"})
        assert refused == (429, "too_many_connections", "1")


async def test_responses_are_limited_by_key() -> None:
    slow = FakeSpeechEngine(FakeScript(first_chunk_s=5.0))
    limits = {"limits__max_active_responses_per_key": 1}
    async with live_server(slow, **limits) as live, live.session() as first, live.session() as second:
        await first.send(ev.ResponseCreate(response_id="r", text=TEXT))
        await next_of(first, ev.ResponseCreated)
        await second.send(ev.ResponseCreate(response_id="r", text=TEXT))
        error = await next_of(second, ev.ErrorEvent)
        assert (error.code, error.retryable, error.retry_after_ms) == ("limit_exceeded", True, 1_000)


async def test_a_key_can_have_a_limit_of_its_own(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[[keys]]\nname = "one"\nkey = "{KEY}"\nmax_active_responses = 1\n')
    slow = FakeSpeechEngine(FakeScript(first_chunk_s=5.0))
    async with live_server(slow, auth__keys_file=str(keys)) as live, live.session(KEY) as client:
        for response_id in ("a", "b"):
            await client.send(ev.ResponseCreate(response_id=response_id, text=TEXT))
        error = await next_of(client, ev.ErrorEvent)
        assert (error.code, error.response_id, error.message) == (
            "limit_exceeded", "b", "max_active_responses_per_key is 1")  # fmt: skip


async def test_only_lasting_overload_refuses_handshakes() -> None:
    slow = FakeSpeechEngine(FakeScript(first_chunk_s=60.0))
    limits = {"limits__max_active_responses": 1, "limits__overload_grace_s": 0.6}
    async with live_server(slow, **limits) as live, live.session() as client:
        await client.send(ev.ResponseCreate(response_id="r", text=TEXT))
        await next_of(client, ev.ResponseCreated)
        async with live.session():
            pass
        await until(lambda: overloaded_for(live) > 0.6)
        assert await refusal(live.url + "/v1/speech") == (429, "overloaded", "1")
        await client.send(ev.ResponseCancel(response_id="r"))
        await next_of(client, ev.ResponseDone)
        await until(lambda: overloaded_for(live) == 0)
        async with live.session():
            pass


def overloaded_for(live: LiveServer) -> float:
    since_s = live.speech._overloaded_since_s
    return 0.0 if since_s is None else asyncio.get_running_loop().time() - since_s


async def test_a_draining_server_takes_nothing_new(live: LiveServer) -> None:
    live.engine.script = FakeScript(first_chunk_s=0.3)
    async with live.session() as client, live.http() as http:
        await client.send(ev.ResponseCreate(response_id="r", text=TEXT, end=True))
        await next_of(client, ev.ResponseCreated)
        live.speech.draining = True
        assert await refusal(live.url + "/v1/speech") == (503, "draining", "1")
        assert (await http.get("/readyz")).json() == {"status": "draining"}
        assert (await http.get("/healthz")).status_code == 200
        assert (await http.post("/v1/audio/speech", json={"input": TEXT})).status_code == 503
        await client.send(ev.ResponseCreate(response_id="s", text=TEXT))
        refused = await next_of(client, ev.ErrorEvent)
        assert (refused.code, refused.retryable, refused.retry_after_ms) == ("draining", True, 1_000)
        done = await next_of(client, ev.ResponseDone)
        assert done.status == "completed"
        last = await next_of(client, ev.ErrorEvent)
        assert last.code == "draining"
        with pytest.raises(StopAsyncIteration):
            await anext(client)
        assert client.close_code == 1012


async def test_accepted_sockets_have_the_options_of_the_listener(live: LiveServer) -> None:
    async with live.session():
        connection = next(iter(live.uvicorn.server_state.connections))
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        assert accepted.getsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT) == ListenSettings().tcp_notsent_lowat_bytes
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 2 * ListenSettings().send_buffer_bytes
        assert connection.transport.get_write_buffer_limits()[1] == ListenSettings().write_buffer_bytes


def test_a_name_with_two_addresses_gets_one_port() -> None:
    sockets = listening_sockets(ListenSettings(host="localhost", port=0))
    assert len({listener.getsockname()[1] for listener in sockets}) == 1
    for listener in sockets:
        listener.close()


def test_a_port_that_is_taken_is_an_error() -> None:
    (taken,) = listening_sockets(ListenSettings(port=0))
    taken.listen()
    with pytest.raises(OSError, match="in use"):
        listening_sockets(ListenSettings(port=taken.getsockname()[1]))
    taken.close()


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate of our own for 127.0.0.1, its key beside it."""
    return self_signed(tmp_path)[0]


async def test_tls_by_certificate_files(certificate: Path) -> None:
    files = {"listen__tls_certificate": str(certificate), "listen__tls_key": str(certificate.with_name("key.pem"))}
    async with live_server(**files) as live:
        trust = ssl.create_default_context(cafile=str(certificate))
        async with await open_session(live.url.replace("ws:", "wss:"), trust=trust) as client:
            assert (await speak(client, TEXT)).done.status == "completed"
        with pytest.raises(OSError):  # noqa: PT011
            await open_session(live.url.replace("ws:", "wss:"))


@pytest.mark.parametrize("scheme", ["ws", "wss"])
async def test_tiny_frames_delay_others_by_one_small_read(
    certificate: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    reads = []

    def data_received(protocol: SpeechWebSocketProtocol, data: bytes) -> None:
        reads.append(len(data))
        original(protocol, data)

    original = SpeechWebSocketProtocol.data_received
    monkeypatch.setattr(SpeechWebSocketProtocol, "data_received", data_received)
    files = {"listen__tls_certificate": str(certificate), "listen__tls_key": str(certificate.with_name("key.pem"))}
    async with live_server(**(files if scheme == "wss" else {})) as live:
        trust = ssl.create_default_context(cafile=str(certificate)) if scheme == "wss" else None
        async with await open_session(live.url.replace("ws:", f"{scheme}:"), trust=trust) as client:
            client._socket.transport.write(Frame(Opcode.PONG, b"").serialize(mask=True) * 50_000)
            assert (await speak(client, TEXT)).done.status == "completed"
    assert sum(reads) > 300_000
    assert max(reads) <= 2 * READ_BYTES  # by TLS the rest of a record comes with it


async def test_a_certificate_that_cannot_be_read_is_named() -> None:
    with pytest.raises(ConfigError, match=r"listen\.tls_certificate.*nowhere\.pem"):
        async with live_server(listen__tls_certificate="nowhere.pem"):
            pass
