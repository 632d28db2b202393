"""What holds for every wire and every phone line, over real sockets."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.engine import FakeScript, FakeSpeechEngine
from tests.realtime.dialects.vendor_clients import KEY, LONG, VendorClient, dial, every, hear_first_audio, send
from tests.realtime.leftovers import complaints, leaves_no_object
from tests.realtime.live_server import live_server
from tests.realtime.wires import LINES, WIRES, Ending, Peer

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
        for _ in range(3):
            await peer.visit(live, ending, LONG)
            await live.freed()
    assert complaints(caplog) == []


@every
async def test_client_that_closes_amid_many_replies_logs_nothing(
    client: VendorClient, caplog: pytest.LogCaptureFixture
) -> None:
    """The server's end is closed by the client's close message while many messages are ready to be sent."""
    turns = ["t1"] if client.one_turn else [f"t{number}" for number in range(1, 9)]
    async with live_server(FakeSpeechEngine(FASTEST), auth__api_keys=f"agent:{KEY}") as live:
        for _ in range(4):
            line = await dial(live, client)
            for turn in turns:
                await send(line, client, client.say(turn, LONG) + client.end(turn))
            await hear_first_audio(line, client)
            await line.close()
            await live.freed()
    assert complaints(caplog) == []
