"""Bodies in crumbs: refused on both sides of HTTP, before they cost anybody time."""

from __future__ import annotations

import asyncio
import logging

import h11
import pytest

from realtime.h11_limits import MAX_SMALL_CHUNKS, SMALL_CHUNK_BYTES, ChunkLimitedConnection
from tests.realtime.live_server import live_server, until

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


def test_a_few_crumbs_and_many_pieces_are_read() -> None:
    assert read(*[piece(1)] * MAX_SMALL_CHUNKS) == MAX_SMALL_CHUNKS
    assert read(*[piece(SMALL_CHUNK_BYTES)] * 5 * MAX_SMALL_CHUNKS) == 5 * MAX_SMALL_CHUNKS * SMALL_CHUNK_BYTES


@pytest.mark.parametrize("pieces", [[piece(1)] * (MAX_SMALL_CHUNKS + 5), [piece(100)] * 2 * MAX_SMALL_CHUNKS])
def test_more_are_not(pieces: list[bytes]) -> None:
    with pytest.raises(h11.RemoteProtocolError, match="pieces"):
        read(*pieces)


@pytest.mark.parametrize("path", [b"/v1/audio/speech", b"/v1/nothing", b"/v1/text-to-speech/ada"])
@pytest.mark.parametrize("at_once", [True, False])
async def test_a_request_in_crumbs_is_cut(path: bytes, at_once: bool, caplog: pytest.LogCaptureFixture) -> None:
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
