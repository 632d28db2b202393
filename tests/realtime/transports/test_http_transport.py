"""A client that leaves while its request is still arriving: nobody's fault, and no error of ours."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.realtime.live_server import live_server, until

ADDRESSES = ("/v1/tokens", "/v1/calls/call-1", "/v1/audio/speech", "/v1/audio/speech/batch", "/v1/text-to-speech/zoe")


async def test_a_client_that_leaves_in_mid_request_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async with live_server() as live:
        for path in ADDRESSES:
            _, writer = await asyncio.open_connection("127.0.0.1", live.port)
            head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{live.port}\r\nContent-Length: 100\r\n\r\n"
            writer.write(head.encode() + b'{"half": ')
            await writer.drain()
            await until(lambda: len(live.uvicorn.config.http_connections) == 1)  # type: ignore[attr-defined]
            await asyncio.sleep(0.05)
            writer.transport.abort()
            await until(lambda: not live.uvicorn.config.http_connections)  # type: ignore[attr-defined]
            await asyncio.sleep(0.05)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
