"""The second family behind every vendor's wire and in a phone call; whoever leaves in between leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from realtime.protocol import events as ev
from tests.fakes.cosyvoice3_checkpoint import write_cosyvoice3
from tests.fakes.cosyvoice3_voices import write_saved_voices
from tests.realtime.calls.test_sockets import KEY, PUBLIC, SIGNED, TOKEN, told, twilio_call
from tests.realtime.calls.test_sockets import dial as dial_agent
from tests.realtime.dialects.vendor_clients import CLIENTS, dial, hear_first_audio, hear_to_the_close, send, turn
from tests.realtime.live_server import LiveServer, live_server, next_of, speak, until

TEXT = "Hello there, how are you?"
LONG = "The quick brown fox jumps over the lazy dog. " * 20
# One speech token: with live text a random model ends where it likes.
LEAST_BYTES = 2 * 960
FLAGS = {"calls__twilio_auth_token": TOKEN, "calls__public_url": PUBLIC, "calls__default_key_name": "agent"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_cosyvoice3(tmp_path_factory.mktemp("checkpoint") / "cosyvoice3")
    write_saved_voices(folder, "Anna", "ben")
    return folder


@pytest.fixture
async def live(checkpoint: Path) -> AsyncIterator[LiveServer]:
    from engine.launch import create_engine

    engine = create_engine(checkpoint, process=False, kv_memory_mb=64, lazy_graph_capture=True)
    async with live_server(engine, auth__api_keys=f"agent:{KEY}", **FLAGS) as server:
        yield server
        await freed(server)


async def freed(live: LiveServer) -> None:
    """Nothing is held for anybody: free + held = total in both stages."""
    await until(lambda: live.speech.num_connections == 0)
    await until(lambda: live.engine.stats().num_running == 0)
    await until(lambda: live.engine.stats().slots_free == live.engine.stats().slots_total)
    assert live.engine.stats().num_waiting == 0
    assert live.speech.num_active_responses == 0


async def test_every_vendors_wire_speaks(live: LiveServer) -> None:
    for client in CLIENTS.values():
        async with dial(live, client) as socket:
            assert len(await turn(socket, client, "t1", TEXT)) >= LEAST_BYTES, client.name
            if client.one_turn:
                assert (await hear_to_the_close(socket, client))[0] == 1000, client.name


async def test_client_disconnect_in_mid_response_leaves_nothing(live: LiveServer) -> None:
    for client in list(CLIENTS.values())[:3]:
        async with dial(live, client) as socket:
            await send(socket, client, client.say("t1", LONG))
            await hear_first_audio(socket, client)
        await freed(live)


async def test_an_agent_speaks_into_a_call(live: LiveServer) -> None:
    async with (
        dial_agent(live, "/v1/calls", Authorization=f"Bearer {KEY}") as agent,
        twilio_call(live, **SIGNED) as far,
    ):
        call_id = (await told(agent, "call.connected"))["call_id"]
        await agent.send(json.dumps({"type": "say", "call_id": call_id, "text": "Hello."}))
        played = await told(agent, "reply.played")
        assert played["confirmed"]
        assert far.played_s == pytest.approx(played["played_ms"] / 1000, abs=0.02)
        assert far.played_s > 0.1
        await agent.send(json.dumps({"type": "hang_up", "call_id": call_id}))
        assert (await told(agent, "call.hung_up"))["reason"] == "agent"


async def test_an_interruption_ends_at_once_and_the_next_reply_speaks(live: LiveServer) -> None:
    async with live.session(api_key=KEY) as client:
        settings = ev.NativeSpeechSettings(voice="anna")
        await client.send(ev.ResponseCreate(response_id="r", settings=settings, text=LONG, end=True))
        await next_of(client, ev.AudioMessage)
        await client.send(ev.ResponseCancel(response_id="r"))
        done = await next_of(client, ev.ResponseDone)
        assert isinstance(done, ev.ResponseDone)
        assert (done.response_id, done.status) == ("r", "cancelled")
        again = await speak(client, TEXT, response_id="s", voice="anna")
        assert again.done.status == "completed"
        assert {message.response for message in again.audio} == {again.done.response}


async def test_voices_side_by_side_sound_as_alone(live: LiveServer) -> None:
    """As long, at least: calls of other shapes round elsewhere."""

    async def say(voice: str) -> int:
        async with live.session(api_key=KEY) as client:
            spoken = await speak(client, TEXT, voice=voice, seed=4, max_frames=40)
            assert spoken.done.status == "completed"
            return spoken.done.audio_samples

    alone = [await say(voice) for voice in ("anna", "ben")]
    assert await asyncio.gather(*map(say, ("anna", "ben"))) == alone
