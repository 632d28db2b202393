"""An engine at a TCP address: mutual TLS, and peers that are slow, silent, wrong or hostile."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from engine import client, listener
from engine.address import EngineAddress, TlsFiles
from engine.api import EngineDead, EngineInfo, InvalidRequest
from engine.client import EngineClient
from engine.endpoint import EngineSocket
from engine.gateway_connection import read_messages, send_all
from engine.ipc import LENGTH, MAX_MESSAGE_BYTES, PROTOCOL_VERSION, HelloMessage, encode, frame_message
from engine.listener import EngineListener
from engine.tls_socket import TlsSocket
from tests.engine.conftest import CARRIED_SHAPES
from tests.engine.served_engine import ServedEngine, tls_files
from tests.engine.stream_recorder import listen
from tests.engine.test_launch import check_says, request, wait_until
from tests.fakes.checksum_model import ChecksumFamily
from tests.realtime.certificates import CertificateAuthority

HELLO = HelloMessage(EngineInfo("fake", 24000, 1920, (), ("auto",), 100, False))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    """Files of another CA, of the same name."""
    return tls_files(CertificateAuthority(tmp_path_factory.mktemp("other")), "gateway")


@pytest.fixture(params=CARRIED_SHAPES)
def shape(request: pytest.FixtureRequest) -> ChecksumFamily:
    found: ChecksumFamily = request.param
    return found


@pytest.fixture
def served(shape: ChecksumFamily, authority: CertificateAuthority) -> Iterator[ServedEngine]:
    engine = ServedEngine(shape, tls=tls_files(authority, "engine"))
    yield engine
    engine.stop()


@pytest.fixture
def gateway_files(authority: CertificateAuthority) -> TlsFiles:
    return tls_files(authority, "gateway")


async def check_speaks(shape: ChecksumFamily, engine: ServedEngine, files: TlsFiles) -> None:
    gateway = EngineClient(EngineSocket(engine.address, files))
    await gateway.start()
    specs = [request(number) for number in range(8)]
    for spec, heard in zip(specs, await asyncio.gather(*(listen(gateway.submit(s)) for s in specs)), strict=True):
        check_says(shape, heard, spec)
    await gateway.aclose()


async def test_requests_are_spoken_over_mutual_tls(
    shape: ChecksumFamily, served: ServedEngine, gateway_files: TlsFiles
) -> None:
    await check_speaks(shape, served, gateway_files)


async def closed_after(served: ServedEngine, data: bytes, context: ssl.SSLContext | None) -> bytes:
    """What the engine sends to a peer before it closes."""
    address, received = served.address, b""
    try:
        reader, writer = await asyncio.open_connection(address.host, address.port, ssl=context)
        writer.write(data)
        async with asyncio.timeout(30):
            received = await reader.read()
        writer.close()
        await writer.wait_closed()
    except OSError:
        pass
    return received


def anonymous() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def trusting(files: TlsFiles) -> ssl.SSLContext:
    """Shows a certificate and accepts every one."""
    context = files.client_context()
    context.verify_mode = ssl.CERT_NONE
    return context


async def test_peers_without_a_certificate_of_the_ca_are_closed(
    shape: ChecksumFamily,
    served: ServedEngine,
    gateway_files: TlsFiles,
    stranger: TlsFiles,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing of the engine, not even its hello, reaches them, and the log has a line for each."""
    peers = [(b"GET / HTTP/1.1\r\n\r\n", None), (b"", anonymous()), (b"", trusting(stranger))]
    for number, (data, context) in enumerate(peers, 1):
        assert HELLO.info.model.encode() not in await closed_after(served, data, context)
        await wait_until(lambda number=number: caplog.text.count("a gateway was refused") == number)  # type: ignore[misc]
    assert not served.host.gateways
    await check_speaks(shape, served, gateway_files)


async def test_a_silent_peer_is_closed_and_stops_no_other(
    shape: ChecksumFamily, served: ServedEngine, gateway_files: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "HANDSHAKE_TIMEOUT_S", 0.5)
    silent = [socket.create_connection((served.address.host, served.address.port)) for _ in range(4)]
    await check_speaks(shape, served, gateway_files)
    for peer in silent:
        peer.settimeout(30)
        assert await asyncio.to_thread(peer.recv, 100) == b""
        peer.close()


async def test_open_handshakes_are_bounded(
    served: ServedEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    served.listener._handshakes = threading.BoundedSemaphore(2)
    peers = [socket.create_connection((served.address.host, served.address.port)) for _ in range(3)]
    peers[2].settimeout(30)
    assert await asyncio.to_thread(peers[2].recv, 100) == b""
    assert "handshakes are open" in caplog.text
    for peer in peers:
        peer.close()


async def test_a_message_too_long_ends_a_tls_connection(
    shape: ChecksumFamily, served: ServedEngine, gateway_files: TlsFiles
) -> None:
    await closed_after(served, LENGTH.pack(MAX_MESSAGE_BYTES + 1), gateway_files.client_context())
    await wait_until(lambda: not served.host.gateways)
    await check_speaks(shape, served, gateway_files)


async def test_a_gateway_refuses_an_engine_of_another_ca(served: ServedEngine, stranger: TlsFiles) -> None:
    gateway = EngineClient(EngineSocket(served.address, stranger))
    with pytest.raises(ssl.SSLError, match="certificate verify failed"):
        await gateway.start()
    await gateway.aclose()


async def test_a_renewed_certificate_needs_no_restart(
    shape: ChecksumFamily, served: ServedEngine, authority: CertificateAuthority, gateway_files: TlsFiles
) -> None:
    await check_speaks(shape, served, gateway_files)
    tls_files(authority, "engine")
    await check_speaks(shape, served, gateway_files)


@pytest.fixture
async def greeting() -> AsyncIterator[tuple[EngineAddress, list[bytes]]]:
    """A false engine that sends the list to each gateway."""
    sent: list[bytes] = []

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in sent:
            writer.write(piece)
        with suppress(OSError):
            await reader.read()  # until the gateway closes
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    yield EngineAddress(host="127.0.0.1", port=server.sockets[0].getsockname()[1]), sent
    server.close()


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (LENGTH.pack(MAX_MESSAGE_BYTES + 1), ValueError),
        (frame_message(b"\xc1 no message"), ValueError),
        (encode(HelloMessage(HELLO.info, version=PROTOCOL_VERSION + 1)), EngineDead),
        (b"", EngineDead),
    ],
    ids=["too long", "garbage", "another version", "silent"],
)
async def test_false_engines_are_refused(
    greeting: tuple[EngineAddress, list[bytes]],
    sent: bytes,
    error: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "HELLO_TIMEOUT_S", 0.2)
    address, pieces = greeting
    pieces.append(sent)
    gateway = EngineClient(EngineSocket(address))
    with pytest.raises(error):
        await gateway.start()
    assert not gateway.is_alive
    await gateway.aclose()


async def test_an_engine_that_reports_no_more_counts_as_dead(greeting: tuple[EngineAddress, list[bytes]]) -> None:
    """Its socket stays open."""
    address, pieces = greeting
    pieces.append(encode(HELLO))
    gateway = EngineClient(EngineSocket(address))
    await gateway.start()
    assert gateway.is_alive
    await wait_until(lambda: gateway.num_restarts > 1)
    await gateway.aclose()


def test_unprotected_tcp_is_refused_at_both_ends() -> None:
    open_address = EngineAddress.parse("tcp://0.0.0.0:0")
    with pytest.raises(InvalidRequest, match="loopback"):
        EngineListener(open_address)
    with pytest.raises(InvalidRequest, match="loopback"):
        EngineSocket(open_address)


def test_a_unix_socket_is_for_its_user_and_replaces_an_abandoned_one(tmp_path: Path) -> None:
    address = EngineAddress(str(tmp_path / "engine.sock"))
    left = EngineListener(address)
    assert (tmp_path / "engine.sock").stat().st_mode & 0o777 == 0o600
    with pytest.raises(OSError, match="in use"):
        EngineListener(address)
    left._socket.close()
    assert (tmp_path / "engine.sock").exists()
    EngineListener(address).close()
    assert not (tmp_path / "engine.sock").exists()


def test_tls_carries_both_directions_at_once(authority: CertificateAuthority, gateway_files: TlsFiles) -> None:
    """One thread writes and another reads, as those of a gateway do."""
    ours, theirs = socket.socketpair()
    engine = TlsSocket(ours, tls_files(authority, "engine").server_context())
    messages = [bytes([number % 256]) * (1 + 997 * number % 70_000) for number in range(300)]
    received: list[bytes] = []

    def echo() -> None:
        with gateway_files.client_context().wrap_socket(theirs) as peer:
            while data := peer.recv(10_000):
                peer.sendall(data)

    def read() -> None:
        for some in read_messages(engine):
            received.extend(some)
            if len(received) == len(messages):
                return

    threads = [threading.Thread(target=work) for work in (echo, read)]
    threads[0].start()
    engine.handshake(30)
    threads[1].start()
    for message in messages:
        send_all(engine, [memoryview(frame_message(message))[:5], frame_message(message)[5:]])
    threads[1].join()
    assert received == messages
    engine.shutdown(socket.SHUT_RDWR)
    threads[0].join()
    engine.close()
