"""What goes wrong on every vendor's wire, over real sockets: each tells it in its own words, and nothing is left."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from realtime.protocol import events as ev
from realtime.protocol.dialects.registry import DIALECT_ROUTES, DialectRoute
from tests.fakes.engine import FakeScript, FakeSpeechEngine
from tests.realtime.dialects.chaotic_client import ChaoticClient
from tests.realtime.dialects.socket_client import (
    KEY,
    LEAST_BYTES,
    LONG,
    TEXT,
    dial,
    every,
    hear,
    hear_first_audio,
    hear_to_the_close,
    send,
    turn,
)
from tests.realtime.dialects.valid_messages import RIGHT
from tests.realtime.dialects.vendor_clients import CLIENTS, VendorClient, read
from tests.realtime.live_server import QUICK, WAIT_S, LiveServer, live_server, until


@every
@pytest.mark.parametrize("state", ["connected", "open", "speaking", "cancelled", "ended", "over"])
async def test_a_socket_dropped_in_any_state_leaves_nothing(live: LiveServer, client: VendorClient, state: str) -> None:
    socket = await dial(live, client)
    if state in ("speaking", "cancelled"):
        await send(socket, client, client.say("t1", LONG))
        await hear_first_audio(socket, client)
    elif state != "connected":
        await send(socket, client, client.say("t1", TEXT))
    if state == "cancelled":
        await send(socket, client, client.cancel("t1"))
    if state in ("ended", "over"):
        await send(socket, client, client.end("t1"))
    if state == "over":
        await hear(socket, client, "t1")
    socket.transport.abort()
    await live.freed()
    await socket.wait_closed()


@every
async def test_a_message_that_breaks_the_wire(live: LiveServer, client: VendorClient) -> None:
    close = client.close_after_broken
    for message in client.broken:
        async with dial(live, client) as socket:
            await socket.send(message)
            if close is None:
                async with asyncio.timeout(WAIT_S):
                    while not client.is_error(read(client, await socket.recv())[1]):  # some greet first
                        pass
                assert await turn(socket, client, "t1")
            else:
                code, said = await hear_to_the_close(socket, client)
                assert (code, client.is_error(said[-1])) == (close, True)
    async with dial(live, client) as socket:
        await socket.send(json.dumps({"text": "x" * 300_000, "type": "Speak", "transcript": ""}))
        code, said = await hear_to_the_close(socket, client)
        assert (code, client.is_error(said[-1])) == (1009, True)


@pytest.mark.parametrize(
    "client", [client for client in CLIENTS.values() if not client.one_turn], ids=lambda client: client.name
)
async def test_refused_contexts_count_as_errors(client: VendorClient) -> None:
    """Each turn is refused, for the only place is taken; a connection may make only so many errors."""
    slow = FakeSpeechEngine(FakeScript(first_chunk_s=60.0))
    async with live_server(slow, limits__max_active_responses=1, limits__max_errors_per_connection=4) as live:
        async with live.session() as other, dial(live, client) as socket:
            await other.send(ev.ResponseCreate(response_id="r", text=TEXT))
            await until(lambda: live.speech.num_active_responses == 1)
            with suppress(ConnectionClosed):
                for number in range(12):
                    await send(socket, client, client.say(f"t{number}", TEXT) + client.end(f"t{number}"))
            assert (await hear_to_the_close(socket, client))[0] == 1008
        await live.freed()


@pytest.mark.parametrize("name", ["cartesia", "elevenlabs multi", "elevenlabs dialogue", "rime v1"])
async def test_refused_text_counts_as_errors(name: str) -> None:
    client = CLIENTS[name]
    slow = FakeSpeechEngine(FakeScript(first_chunk_s=60.0))
    async with live_server(slow, limits__max_errors_per_connection=4) as live:
        async with dial(live, client) as socket:
            await send(socket, client, client.say("t1", TEXT) + client.end("t1"))
            with suppress(ConnectionClosed):
                for _ in range(12):
                    await send(socket, client, client.say("t1", TEXT)[-1:])
            assert (await hear_to_the_close(socket, client))[0] == 1008
        await live.freed()


UNKNOWN = (
    {"type": "shout", "shout": {"loud": True}, "frobnicate": [1, None]},
    {"contextId": "t9", "context_id": "t9"},
    {},
)


@every
@pytest.mark.parametrize("number", range(len(UNKNOWN)))
async def test_an_unknown_message_is_passed_over_or_complained_of(
    live: LiveServer, client: VendorClient, number: int
) -> None:
    async with dial(live, client) as socket:
        try:
            unknown = client.pack(UNKNOWN[number])
        except KeyError:  # protocol buffers have no such names: a field of another number
            unknown = b"\x82\x06\x03abc"
        await socket.send(unknown)
        await send(socket, client, client.say("t1", TEXT) + client.end("t1"))
        audio, said, code = await hear_all(socket, client, 1)
        assert len(audio) > LEAST_BYTES or (code == client.close_after_broken and client.is_error(said[-1]))


async def hear_all(
    socket: ClientConnection, client: VendorClient, num_ends: int
) -> tuple[bytes, list[dict[str, Any]], int | None]:
    """Up to so many ends, or to the close."""
    audio, said = b"", []
    async with asyncio.timeout(WAIT_S):
        try:
            while num_ends:
                data, message = read(client, await socket.recv())
                audio += data
                if message:
                    said.append(message)
                    num_ends -= client.is_end(message, "t1")
        except ConnectionClosed:
            return audio, said, socket.close_code
    return audio, said, None


@every
async def test_what_comes_in_the_wrong_order_costs_no_turn(live: LiveServer, client: VendorClient) -> None:
    """Ends and cancels of nothing; then two turns of one name, as of clients that count from one again."""
    if client.one_turn:
        async with dial(live, client) as socket:
            await send(socket, client, client.end("t1") + client.cancel("t1") + client.end("t1"))
            assert (await hear_to_the_close(socket, client))[0] == 1000
        return
    async with dial(live, client) as socket:
        await send(socket, client, client.cancel("t1") + client.end("t1") + client.end("t2") + client.cancel("t2"))
        for _ in range(2):
            await a_turn_that_sounds(socket, client, "t1")


async def a_turn_that_sounds(socket: ClientConnection, client: VendorClient, name: str) -> None:
    """Ends of what was said before may still come first."""
    await send(socket, client, client.say(name, TEXT) + client.end(name))
    num_bytes = 0
    while num_bytes < LEAST_BYTES:
        num_bytes += len((await hear(socket, client, name))[0])


@every
async def test_text_after_the_end_of_its_turn(client: VendorClient) -> None:
    """It begins the next turn, or is complained of, or passed over; each turn has one end."""
    num_turns = 2 if client.text_after_end == "next turn" else 1
    engine = FakeSpeechEngine(FakeScript(real_time_factor=0.15))
    async with live_server(engine) as live, dial(live, client) as socket:
        late = client.say("t1", TEXT)[-1]
        again = client.end("t1") if num_turns > 1 else []
        await send(socket, client, [*client.say("t1", TEXT), *client.end("t1"), late, *again])
        audio, said, code = await hear_all(socket, client, num_turns)
        assert num_turns * LEAST_BYTES < len(audio) < (num_turns + 0.5) * 2 * LEAST_BYTES
        assert any(map(client.is_error, said)) == (client.text_after_end == "complaint")
        assert code in ((1000, None) if client.one_turn else (None,))
        if not client.one_turn:
            engine.script = QUICK
            await a_turn_that_sounds(socket, client, "t2")


@every
async def test_a_voice_we_do_not_have_is_spoken_by_the_default_one(live: LiveServer, client: VendorClient) -> None:
    async with dial(live, client) as socket:
        await turn(socket, client, "t1")
        assert [request.voice for request in live.engine.requests] == [None]


@every
async def test_engine_failure_is_reported_in_vendor_format(client: VendorClient) -> None:
    async with live_server(FakeSpeechEngine(FakeScript(fail_at_frame=2, real_time_factor=0.02))) as live:
        async with dial(live, client) as socket:
            await send(socket, client, client.say("t1", TEXT) + client.end("t1"))
            async with asyncio.timeout(WAIT_S):
                while not client.is_error(read(client, await socket.recv())[1]):
                    pass
        await live.freed()


@every
async def test_a_server_about_to_stop_lets_a_turn_end_and_says_goodbye(client: VendorClient) -> None:
    async with live_server(FakeSpeechEngine(QUICK), listen__drain_timeout_s=WAIT_S) as live:
        async with dial(live, client) as socket:
            await send(socket, client, client.say("t1", TEXT))
            await hear_first_audio(socket, client)
            draining = asyncio.create_task(live.speech.drain())
            await send(socket, client, client.end("t1"))
            code, _ = await hear_to_the_close(socket, client)
            assert code == (1000 if client.one_turn else 1012)
            await draining
        await live.freed()


async def test_the_single_socket_is_closed_when_nothing_is_written() -> None:
    client = replace(CLIENTS["elevenlabs single"], path="/v1/text-to-speech/zoe/stream-input?inactivity_timeout=1")
    async with live_server() as live, dial(live, client) as socket:
        await send(socket, client, client.say("t1", TEXT))
        code, said = await hear_to_the_close(socket, client)
        assert (code, said[-1]["message"]) == (
            1008,
            "Have not received a new text input within the timeout of 1 seconds.",
        )


CHAOS_MESSAGES = 300


@pytest.mark.parametrize(
    "wire", [wire for wire in DIALECT_ROUTES if wire.transport == "socket"], ids=lambda wire: wire.path
)
async def test_nothing_is_left_of_a_client_that_says_anything(live: LiveServer, wire: DialectRoute) -> None:
    rng = random.Random(7)
    chaos = ChaoticClient(rng, RIGHT.get(wire.path, ()))
    path = wire.path.replace("{voice_id}", "zoe") + "?model=flux-zoe-en"
    options = {"subprotocols": ["rime.v1.json"]} if wire.path == "/ws" else {}
    told = 0
    while told < CHAOS_MESSAGES:
        headers = {"Authorization": f"Bearer {KEY}"}
        async with connect(
            live.url + path, compression=None, proxy=None, additional_headers=headers, **options
        ) as socket:
            with suppress(ConnectionClosed):
                for _ in range(rng.randint(1, 40)):
                    told += 1
                    await socket.send(chaos.message())
            socket.transport.abort()
