"""What holds for every wire and every phone line, over real sockets."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
from asyncio.selector_events import _SelectorSocketTransport  # type: ignore[attr-defined]  # typeshed leaves it out
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.engine import FakeScript, FakeSpeechEngine
from tests.realtime import wires
from tests.realtime.dialects.vendor_clients import (
    KEY,
    LONG,
    VendorClient,
    dial,
    every,
    hear_first_audio,
    send,
)
from tests.realtime.leftovers import complaints, leaves_no_object
from tests.realtime.live_server import WAIT_S, live_server
from tests.realtime.wires import AGENTS, LINES, WIRES, Ending, Peer

FASTEST = FakeScript(ms_per_char=60.0, first_chunk_s=0.0, real_time_factor=0.0)


def each(peers: Iterable[Peer], *endings: Ending) -> Any:
    """Every peer in each of these endings that it has."""
    cases = [
        pytest.param(peer, ending, id=f"{peer.name} {ending}")
        for peer in peers
        for ending in endings
        if ending in peer.endings
    ]
    return pytest.mark.parametrize(("peer", "ending"), cases)


@pytest.fixture
def frozen() -> Iterator[None]:
    """Hide all objects from before the test from the garbage collector: it counts those of the server alone."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("frozen")
@each((*WIRES, *LINES), "spoken", "closed", "dropped")
async def test_ended_connection_is_free_without_a_collection(peer: Peer, ending: Ending, tmp_path: Path) -> None:
    text = peer.text if ending == "spoken" else LONG
    async with peer.server(tmp_path) as live:
        await leaves_no_object(live, lambda: peer.visit(live, ending, text))


@each((*WIRES, *LINES), "closed", "reset")
async def test_client_that_leaves_in_mid_reply_logs_nothing(
    peer: Peer, ending: Ending, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with peer.server(tmp_path) as live:
        live.engine.script = FASTEST
        for _ in range(2):
            await peer.visit(live, ending, LONG)
            await live.freed()
    assert complaints(caplog) == []


@every
async def test_client_closing_amid_replies_logs_nothing(client: VendorClient, caplog: pytest.LogCaptureFixture) -> None:
    """The server's end is closed by the client's close message while many messages are ready to be sent."""
    turns = ["t1"] if client.one_turn else [f"t{number}" for number in range(1, 9)]
    async with live_server(FakeSpeechEngine(FASTEST), auth__api_keys=f"agent:{KEY}") as live:
        for _ in range(2):
            line = await dial(live, client)
            for turn in turns:
                await send(line, client, client.say(turn, LONG) + client.end(turn))
            await hear_first_audio(line, client)
            await line.close()
            await live.freed()
    assert complaints(caplog) == []


class LateWrites:
    """Resets amid a write of the server each client that ends so, and counts the writes to it afterwards."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, after_writes: int) -> None:
        self._writes_left = after_writes
        self._client: tuple[Any, asyncio.Transport] | None = None
        self._address: Any = None
        self.num = 0
        write = _SelectorSocketTransport.write

        def counted_write(transport: Any, data: Any) -> None:
            if transport.get_extra_info("peername") == self._address:
                self._before_write(transport.is_closing())
            write(transport, data)

        monkeypatch.setattr(_SelectorSocketTransport, "write", counted_write)
        monkeypatch.setattr(wires, "cut", self._cut)

    async def _cut(self, connection: Any, transport: asyncio.Transport, _: Ending) -> None:
        self._address, self._client = connection.getsockname(), (connection, transport)
        async with asyncio.timeout(WAIT_S):
            while self._client:
                if not transport.is_reading():  # so that the server goes on writing
                    transport.resume_reading()
                await asyncio.sleep(0)

    def _before_write(self, is_closing: bool) -> None:
        self.num += is_closing
        self._writes_left -= 1
        if self._client and self._writes_left == 0:
            connection, transport = self._client
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.abort()
            connection._sock.close()
            self._client = None


@each((*WIRES, *LINES, *AGENTS), "reset in write")
async def test_reset_connection_gets_no_further_write(
    peer: Peer, ending: Ending, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several messages are ready to be sent in the event loop iteration of the reset."""
    async with peer.server(tmp_path) as live:
        live.engine.script = FASTEST
        late = LateWrites(monkeypatch, after_writes=1 if peer in AGENTS else 4)
        await peer.visit(live, ending, LONG)
        await live.freed()
        assert late.num == 0
        assert complaints(caplog) == []
