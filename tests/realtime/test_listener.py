"""The listener and the acceptor in front of it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import h11
import httpx2 as httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect

from realtime.client import open_session
from realtime.config import ConfigError
from realtime.config_sections import ListenSettings
from realtime.h11_limits import MAX_SMALL_CHUNKS, SMALL_CHUNK_BYTES, ChunkLimitedConnection
from realtime.transports.listener import READ_AHEAD_MESSAGES, READ_BYTES, limit_read_size
from realtime.transports.listening_sockets import open_listeners
from realtime.transports.transport import WebSocketTransport
from tests.realtime.certificates import self_signed
from tests.realtime.live_server import WAIT_S, LiveServer, live_server, speak, until

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
BODY_TO_COME = b"POST /v1/nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"


def test_head_that_is_held_leaves_with_the_first_piece_of_the_body() -> None:
    ours, theirs = ChunkLimitedConnection(h11.SERVER), h11.Connection(h11.CLIENT)
    request = h11.Request(method="GET", target="/", headers=[("Host", "localhost")])
    ours.receive_data(theirs.send(request) + theirs.send(h11.EndOfMessage()))
    assert [type(ours.next_event()) for _ in range(2)] == [h11.Request, h11.EndOfMessage]
    ours.holds_head = True
    assert ours.send(h11.Response(status_code=200, headers=[])) == b""
    theirs.receive_data(ours.send(h11.Data(data=b"one")) + ours.send(h11.Data(data=b"two")))
    received = [theirs.next_event() for _ in range(3)]
    assert [event.data for event in received[1:]] == [b"one", b"two"]


async def test_head_of_speech_is_written_with_its_first_audio(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    send = ChunkLimitedConnection.send

    def note(connection: ChunkLimitedConnection, event: object) -> object:
        written.append(send(connection, event))
        return written[-1]

    monkeypatch.setattr(ChunkLimitedConnection, "send", note)
    async with live_server() as live, live.http() as http:
        spoken = {"input": "Hello.", "response_format": "pcm", "stream_format": "audio"}
        assert (await http.post("/v1/audio/speech", json=spoken)).status_code == 200
    first, *_ = filter(None, written)
    head, _, audio = first.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert len(audio) > 100


async def dial(live: LiveServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", live.port)


async def trickle(writer: asyncio.StreamWriter) -> None:
    for byte in HEALTH[:20] * 20:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("first", [HEALTH, BODY_TO_COME], ids=["a second request", "a body that is not read"])
async def test_what_trickles_after_an_answer_is_cut(first: bytes) -> None:
    async with live_server(listen__handshake_timeout_s=0.4) as live:
        reader, writer = await dial(live)
        writer.write(first)
        assert (await reader.readline()).startswith(b"HTTP/1.1 ")
        with pytest.raises(ConnectionError):
            await trickle(writer)
        writer.close()


async def test_a_connection_may_ask_again_and_again_in_time() -> None:
    async with live_server(listen__handshake_timeout_s=0.4) as live:
        reader, writer = await dial(live)
        for _ in range(4):
            writer.write(HEALTH)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            await reader.readexactly(len(b'{"status":"ok"}'))
            await asyncio.sleep(0.2)
        writer.close()


async def test_http_connection_limit_excludes_open_websockets() -> None:
    async with live_server(limits__max_http_connections=1) as live, live.session() as client:
        _, idle = await dial(live)
        reader, writer = await dial(live)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503")
        assert json.loads(body)["error"]["code"] == "too_many_connections"
        writer.close()
        idle.close()
        await until(lambda: not live.uvicorn.config.http_connections)  # type: ignore[attr-defined]
        async with live.http() as http:
            assert (await http.get("/healthz")).status_code == 200
        assert (await speak(client, "Hello.")).done.status == "completed"


async def test_a_client_that_reads_nothing_of_its_speech_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("realtime.transports.transport.WRITE_GRACE_S", 0.2)
    small = {"limits__reader_timeout_s": 0.2, "listen__send_buffer_bytes": 4_096, "listen__write_buffer_bytes": 1_024}
    async with live_server(**small) as live:
        with socket.socket() as stalled:
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            stalled.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(stalled, ("127.0.0.1", live.port))
            body = json.dumps({"input": "All of this is spoken to nobody. " * 20, "response_format": "pcm"}).encode()
            head = f"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            await loop.sock_sendall(stalled, head.encode() + body)
            await until(lambda: bool(live.uvicorn.server_state.tasks))
            await until(lambda: not live.uvicorn.server_state.tasks)
            await live.freed()
            assert not live.uvicorn.server_state.connections


async def test_websocket_read_ahead_of_application_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not taken stays with whoever sent it, and all of it is taken in the end."""
    taking, taken = asyncio.Event(), []

    async def receive(link: WebSocketTransport) -> str | bytes | None:
        await taking.wait()
        message = await original(link)
        taken.append(message)
        return message

    original = WebSocketTransport.receive
    monkeypatch.setattr(WebSocketTransport, "receive", receive)
    async with live_server() as live, connect(live.url + "/v1/calls", proxy=None, max_queue=None) as client:
        sending = asyncio.create_task(send_numbered(client))
        [protocol] = live.uvicorn.server_state.connections
        await until(lambda: protocol.read_paused)  # type: ignore[attr-defined]
        unread = protocol.queue.qsize()  # type: ignore[attr-defined]
        await asyncio.sleep(0.1)
        assert READ_AHEAD_MESSAGES <= protocol.queue.qsize() == unread < 12  # type: ignore[attr-defined]
        taking.set()
        await until(lambda: len(taken) == 20)
        assert [str(message)[:3] for message in taken] == [f"{number:03}" for number in range(20)]
        await sending
        assert not protocol.read_paused  # type: ignore[attr-defined]


async def send_numbered(client: ClientConnection) -> None:
    for number in range(20):
        await client.send(f"{number:03}" + "x" * 100_000)


HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
POST = b"POST %s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


def piece(num_bytes: int) -> bytes:
    return b"%x\r\n%s\r\n" % (num_bytes, b"x" * num_bytes)


def read(*pieces: bytes) -> int:
    """Bytes of the body, all of them."""
    connection = ChunkLimitedConnection(h11.CLIENT, max_incomplete_event_size=10**8)
    connection.send(h11.Request(method="GET", target="/", headers=[("Host", "a")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(b"".join((HEAD, *pieces, b"0\r\n\r\n")))
    num_bytes = 0
    while not isinstance(event := connection.next_event(), h11.EndOfMessage):
        num_bytes += len(event.data) if isinstance(event, h11.Data) else 0
    return num_bytes


def test_few_small_chunks_and_many_large_ones_are_read() -> None:
    assert read(*[piece(1)] * MAX_SMALL_CHUNKS) == MAX_SMALL_CHUNKS
    assert read(*[piece(SMALL_CHUNK_BYTES)] * 5 * MAX_SMALL_CHUNKS) == 5 * MAX_SMALL_CHUNKS * SMALL_CHUNK_BYTES


@pytest.mark.parametrize("pieces", [[piece(1)] * (MAX_SMALL_CHUNKS + 5), [piece(100)] * 2 * MAX_SMALL_CHUNKS])
def test_more_are_not(pieces: list[bytes]) -> None:
    with pytest.raises(h11.RemoteProtocolError, match="pieces"):
        read(*pieces)


def test_each_request_of_a_connection_may_have_as_many() -> None:
    connection = ChunkLimitedConnection(h11.SERVER)
    for _ in range(2):
        connection.receive_data(POST % b"/" + piece(1) * MAX_SMALL_CHUNKS + b"0\r\n\r\n")
        while not isinstance(connection.next_event(), h11.EndOfMessage):
            pass
        connection.send(h11.Response(status_code=204, headers=[]))
        connection.send(h11.EndOfMessage())
        connection.start_next_cycle()


@pytest.mark.parametrize("path", [b"/v1/audio/speech", b"/v1/nothing", b"/v1/text-to-speech/ada"])
@pytest.mark.parametrize("at_once", [True, False])
async def test_request_in_small_chunks_is_cut(path: bytes, at_once: bool, caplog: pytest.LogCaptureFixture) -> None:
    async with live_server(auth__api_keys="agent:0123456789abcdef") as live:
        reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
        writer.write(POST % path)
        if not at_once:
            await until(lambda: len(live.uvicorn.config.http_connections) == 1)  # type: ignore[attr-defined]
        writer.write(piece(1) * 50_000)
        try:
            answer = await reader.read()
        except ConnectionError:
            answer = b""
        assert answer[:12] in (b"", b"HTTP/1.1 400", b"HTTP/1.1 404", b"HTTP/1.1 401")
        writer.close()
        await until(lambda: not live.uvicorn.config.http_connections)  # type: ignore[attr-defined]
        await live.freed()
        assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
        async with live.http() as http:
            assert (await http.get("/healthz")).status_code == 200


DEVICES = {"xiaozhi__mqtt": "127.0.0.1:0", "xiaozhi__udp": "127.0.0.1:0"}


@pytest.fixture
def tls(tmp_path: Path) -> dict[str, str]:
    certificate, key = self_signed(tmp_path)
    return {"listen__tls_certificate": str(certificate), "listen__tls_key": str(key)}


def http_port(live: LiveServer) -> int:
    return live.port


def device_port(live: LiveServer) -> int:
    port = live.uvicorn.config.app.state.device_ports.port
    assert isinstance(port, int)
    return port


@pytest.mark.parametrize("port_of", [http_port, device_port])
async def test_silent_tls_connections_end_in_time(tls: dict[str, str], port_of: Callable[[LiveServer], int]) -> None:
    async with live_server(**tls, **DEVICES, listen__handshake_timeout_s=0.5) as live:
        async with asyncio.timeout(WAIT_S):
            readers = [await dial_acceptor(port_of(live)) for _ in range(30)]
            for reader, writer in readers:
                assert await has_ended(reader)
                writer.close()


@pytest.mark.parametrize("port_of", [http_port, device_port])
async def test_silent_tls_connections_make_way(tls: dict[str, str], port_of: Callable[[LiveServer], int]) -> None:
    """The oldest handshakes end where there are more than max_http_connections, and honest clients come through."""
    limits = {"limits__max_http_connections": 8, "listen__handshake_timeout_s": 60}
    async with live_server(**tls, **DEVICES, **limits) as live, AsyncExitStack() as opened:
        dialled = []
        for _ in range(40):
            dialled.append(await dial_acceptor(port_of(live)))
            opened.callback(dialled[-1][1].close)
        async with asyncio.timeout(WAIT_S):
            trust = ssl.create_default_context(cafile=tls["listen__tls_certificate"])
            _, writer = await asyncio.open_connection("127.0.0.1", port_of(live), ssl=trust)
            writer.close()
            for reader, _ in dialled[:33]:
                assert await has_ended(reader)
        await asyncio.sleep(0.1)
        assert not any(reader.at_eof() for reader, _ in dialled[33:])


async def dial_acceptor(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port)


async def has_ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


async def test_one_server_listens_plain_and_with_tls(tls: dict[str, str]) -> None:
    async with live_server(**tls, listen__tls_port=0) as live:
        assert live.tls_port not in (None, live.port)
        secure = f"//127.0.0.1:{live.tls_port}"
        trust = ssl.create_default_context(cafile=tls["listen__tls_certificate"])
        async with await open_session(live.url) as plain, await open_session(f"wss:{secure}", trust=trust) as client:
            for one in (plain, client):
                assert (await speak(one, "Hello there.")).done.status == "completed"
        async with live.http() as http, httpx.AsyncClient(verify=trust, trust_env=False) as https:
            assert (await http.get("/healthz")).status_code == 200
            assert (await https.get(f"https:{secure}/healthz")).status_code == 200
            page = {"Origin": f"https:{secure}"}
            assert (await https.get(f"https:{secure}/v1/voices", headers=page)).status_code == 200
        with pytest.raises(OSError):  # noqa: PT011
            await open_session(f"wss://127.0.0.1:{live.port}", trust=trust)


async def test_curl_reaches_both_ports(tls: dict[str, str]) -> None:
    if (curl := shutil.which("curl")) is None:
        pytest.skip("curl is not installed")
    async with live_server(**tls, listen__tls_port=0, listen__tls_host="localhost") as live:
        for url in (f"http://127.0.0.1:{live.port}/healthz", f"https://127.0.0.1:{live.tls_port}/healthz"):
            command = [curl, "-sS", "--noproxy", "*", "--cacert", tls["listen__tls_certificate"], url]
            process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
            assert (await process.communicate())[0] == b'{"status":"ok"}'


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tls_port": 0}, r"listen\.tls_port = 0 needs listen\.tls_certificate"),
        ({"tls_host": "::1"}, r"listen\.tls_host = '::1' needs listen\.tls_port"),
        ({"port": 8_443, "tls_port": 8_443, "tls_certificate": "c"}, r"listen\.tls_port = 8443"),
    ],
)
def test_tls_ports_that_cannot_be_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_listeners(ListenSettings(**settings))  # type: ignore[arg-type]


async def test_out_of_file_descriptors_is_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clients that wait are served when there are some again."""
    monkeypatch.setattr("realtime.transports.acceptor.ACCEPT_PAUSE_S", 0.05)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with live_server() as live:
        with socket.socket() as client:
            client.setblocking(False)
            with socket.socket() as last:
                resource.setrlimit(resource.RLIMIT_NOFILE, (last.fileno() + 1, hard))
                held = take_all_files()
                try:
                    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", live.port))
                    await until(lambda: bool(live.uvicorn.acceptor._pauses))
                    assert not live.uvicorn.server_state.connections
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                    for descriptor in held:
                        os.close(descriptor)
            await until(lambda: len(live.uvicorn.server_state.connections) == 1)
            assert not live.uvicorn.acceptor._pauses


def take_all_files() -> list[int]:
    held: list[int] = []
    with suppress(OSError):
        while True:
            held.append(os.dup(0))
    return held


async def test_a_connection_in_its_handshake_ends_with_the_server(tls: dict[str, str]) -> None:
    async with live_server(**tls) as live:
        reader, writer = await dial_acceptor(live.port)
        await until(lambda: bool(live.uvicorn.acceptor._handshakes))
    assert await asyncio.wait_for(has_ended(reader), WAIT_S)
    writer.close()


class ReadSizes(asyncio.Protocol):
    def __init__(self) -> None:
        self.sizes: list[int] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        limit_read_size(transport, READ_BYTES)

    def data_received(self, data: bytes) -> None:
        self.sizes.append(len(data))


async def test_read_size_is_limited_by_this_version_of_asyncio(tmp_path: Path) -> None:
    """``limit_read_size`` sets private parts of asyncio."""
    chain, key = self_signed(tmp_path)
    server_side, client_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=chain)
    server_side.load_cert_chain(chain, key)
    received, num_bytes = ReadSizes(), 20 * READ_BYTES
    server = await asyncio.get_running_loop().create_server(lambda: received, "127.0.0.1", 0, ssl=server_side)
    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname(), ssl=client_side)
    writer.write(b"x")  # what comes with the end of the handshake is read before
    await until(lambda: received.sizes == [1])
    writer.write(bytes(num_bytes - 1))
    await until(lambda: sum(received.sizes) == num_bytes)
    assert max(received.sizes) <= READ_BYTES
    writer.close()
    await writer.wait_closed()
    received.transport.close()
    server.close()
    await server.wait_closed()
