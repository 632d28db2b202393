"""How tests speak to a vendor's wire over a real socket, whichever it is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, ConnectionClosedOK

from tests.realtime.dialects.vendor_clients import CLIENTS, VendorClient, read
from tests.realtime.live_server import WAIT_S, LiveServer

KEY = "a-key-of-enough-characters"
TEXT = "Hello there, how are you today?"
LONG = "This is one sentence of a very long story. " * 60
LEAST_BYTES = 2 * 24_000 * len(TEXT) * 0.04 * 0.9

every = pytest.mark.parametrize("client", CLIENTS.values(), ids=lambda client: client.name)


def dial(live: LiveServer, client: VendorClient, **options: Any) -> connect:
    settings = {"compression": None, "proxy": None, "additional_headers": {"Authorization": f"Bearer {KEY}"}} | options
    settings["subprotocols"] = [*client.subprotocols, *settings.get("subprotocols", ())] or None
    return connect(live.url + client.path, **settings)


async def send(socket: ClientConnection, client: VendorClient, messages: list[dict[str, Any]]) -> None:
    for message in messages:
        await socket.send(client.pack(message))


async def turn(socket: ClientConnection, client: VendorClient, name: str, text: str = TEXT) -> bytes:
    await send(socket, client, client.say(name, text) + client.end(name))
    return (await hear(socket, client, name))[0]


async def hear(socket: ClientConnection, client: VendorClient, name: str) -> tuple[bytes, list[dict[str, Any]]]:
    """Up to the end of a turn."""
    audio, said = b"", []
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                data, message = read(client, await socket.recv())
            except ConnectionClosedOK:
                assert client.one_turn
                return audio, said
            if message.get("context_id", name) in (name, None):  # not what was under way of another
                audio += data
            if message:
                said.append(message)
                if client.is_end(message, name):
                    return audio, said


async def hear_first_audio(socket: ClientConnection, client: VendorClient) -> None:
    async with asyncio.timeout(WAIT_S):
        while not read(client, await socket.recv())[0]:
            pass


async def hear_to_the_close(socket: ClientConnection, client: VendorClient) -> tuple[int, list[dict[str, Any]]]:
    said = []
    async with asyncio.timeout(WAIT_S):
        try:
            while True:
                said.append(read(client, await socket.recv())[1])
        except ConnectionClosed:
            assert socket.close_code is not None
            return socket.close_code, said
