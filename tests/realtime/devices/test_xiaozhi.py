"""xiaozhi over WebSocket: what a device hears when an agent speaks, and what the agent hears of the device."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from realtime.protocol.telephony.xiaozhi import HEADERS, PACKET_MS, pack_frame, unpack_frame
from sessions.audio.opus import OpusDecoder, OpusEncoder, OpusSettings
from sessions.audio.pcm import EMPTY
from tests.fakes.engine import FakeScript, FakeSpeechEngine
from tests.realtime.calls.test_sockets import dial, told
from tests.realtime.live_server import WAIT_S, LiveServer, live_server

Json = dict[str, Any]
HELLO = {
    "type": "hello",
    "version": 1,
    "transport": "websocket",
    "features": {"mcp": True},
    "audio_params": {"format": "opus", "sample_rate": 16_000, "channels": 1, "frame_duration": 60},
}
TEXT = "Hello there, how are you today?"
# Clocks of a busy machine.
EARLY_S = 0.4


@pytest.fixture
async def live() -> AsyncIterator[LiveServer]:
    async with live_server(calls__barge_in=False, xiaozhi__end_of_speech_delay_ms=100) as server:
        yield server


def device(live: LiveServer, version: int = 1, **headers: str) -> connect:
    shown = {"Protocol-Version": str(version), "Device-Id": "aa:bb:cc", "Client-Id": "7", **headers}
    return connect(f"{live.url}/xiaozhi/v1/", additional_headers=shown, compression=None, proxy=None)


async def greet(line: ClientConnection, **more: object) -> Json:
    await line.send(json.dumps({**HELLO, **more}))
    return json.loads(await asyncio.wait_for(line.recv(), WAIT_S))


async def heard(line: ClientConnection, wanted: Callable[[Json], bool]) -> tuple[list[bytes], Json, list[float]]:
    """Packets up to a message, and when they came."""
    packets: list[bytes] = []
    times_s: list[float] = []
    async with asyncio.timeout(WAIT_S):
        while True:
            message = await line.recv()
            if isinstance(message, str):
                if wanted(found := json.loads(message)):
                    return packets, found, times_s
            else:
                packets.append(message)
                times_s.append(asyncio.get_running_loop().time())


def is_tts(state: str) -> Callable[[Json], bool]:
    return lambda found: (found["type"], found.get("state")) == ("tts", state)


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_an_agent_speaks_to_a_device(live: LiveServer, version: int) -> None:
    async with dial(live, "/v1/calls") as agent, device(live, version) as line:
        hello = await greet(line)
        assert (hello["type"], hello["transport"]) == ("hello", "websocket")
        assert hello["audio_params"] == {"format": "opus", "sample_rate": 24_000, "channels": 1, "frame_duration": 60}
        call = await told(agent, "call.connected")
        assert (call["provider"], call["provider_call_id"]) == ("xiaozhi", hello["session_id"])
        assert call["parameters"] == {"device_id": "aa:bb:cc", "client_id": "7"}
        text = TEXT if version == 3 else "Hello."
        await agent.send(json.dumps({"type": "say", "call_id": call["call_id"], "text": text}))
        assert (await heard(line, is_tts("start")))[1]["session_id"] == hello["session_id"]
        packets, _, times_s = await heard(line, is_tts("stop"))
        ended_s = asyncio.get_running_loop().time()
        played = await told(agent, "reply.played")
        check_sound([unpack_frame(version, packet) for packet in packets], played["played_ms"])
        check_pace(times_s, ended_s)
        if version == 2:
            clock_ms = [HEADERS[2].unpack_from(packet)[3] for packet in packets]
            assert clock_ms == [number * PACKET_MS for number in range(len(packets))]
        await agent.send(json.dumps({"type": "hang_up", "call_id": call["call_id"]}))
        assert (await heard(line, lambda found: found["type"] == "goodbye"))[0] == []


def check_sound(packets: list[bytes], played_ms: float) -> None:
    decoder = OpusDecoder(24_000)
    pieces = [decoder.decode(packet) for packet in packets]
    assert {piece.size for piece in pieces} == {24_000 * PACKET_MS // 1000}
    pcm = np.concatenate([EMPTY, *pieces])
    assert np.abs(pcm).max() > 0.05
    assert played_ms <= pcm.size / 24 <= played_ms + 3 * PACKET_MS


def check_pace(times_s: list[float], ended_s: float) -> None:
    """Never more than the lead ahead of one who plays from the first packet on, and the end when all is played."""
    for number, time_s in enumerate(times_s):
        ahead_ms = (number + 1) * PACKET_MS - 1_000 * (time_s - times_s[0])
        assert ahead_ms < 400 + 2 * PACKET_MS + 1_000 * EARLY_S
    assert ended_s - times_s[0] > len(times_s) * PACKET_MS / 1000 - EARLY_S


async def test_two_replies_and_an_abort_between() -> None:
    script = FakeScript(ms_per_char=60.0, real_time_factor=0.1)
    async with (
        live_server(FakeSpeechEngine(script), calls__barge_in=False) as live,
        dial(live, "/v1/calls") as agent,
        device(live) as line,
    ):
        await greet(line)
        call = await told(agent, "call.connected")
        await agent.send(json.dumps({"type": "say", "call_id": call["call_id"], "text": TEXT * 5}))
        await heard(line, is_tts("start"))
        for _ in range(8):
            assert isinstance(await line.recv(), bytes)
        await line.send(json.dumps({"type": "abort", "reason": "wake_word_detected"}))
        await heard(line, is_tts("stop"))
        cut = await told(agent, "reply.interrupted")
        assert cut["cause"] == "caller"
        assert (TEXT * 5).startswith(cut["heard"]["text"])
        assert cut["heard"]["played_ms"] < 1_500
        await agent.send(json.dumps({"type": "say", "call_id": call["call_id"], "text": "Yes?"}))
        packets, _, _ = await heard(line, is_tts("start"))
        assert packets == [], "nothing of the old one came after the end"
        packets, _, _ = await heard(line, is_tts("stop"))
        assert 4 <= len(packets) <= 8


async def test_what_the_user_wrote_reaches_the_agent(live: LiveServer) -> None:
    async with dial(live, "/v1/calls") as agent, device(live) as line:
        await greet(line)
        await told(agent, "call.connected")
        await line.send(json.dumps({"type": "listen", "state": "detect", "text": "Hey, you"}))
        assert (await told(agent, "call.text"))["text"] == "Hey, you"
        for passed_over in ({"type": "listen", "state": "start"}, {"type": "mcp", "payload": {}}, {"type": "news"}):
            await line.send(json.dumps(passed_over))
        await line.send(json.dumps({"type": "listen", "state": "detect", "text": "Still there?"}))
        assert (await told(agent, "call.text"))["text"] == "Still there?"
        await line.send(json.dumps({"type": "goodbye"}))
        assert (await told(agent, "call.hung_up"))["reason"] == "caller"


async def test_invalid_microphone_audio_affects_nothing_else(live: LiveServer) -> None:
    async with dial(live, "/v1/calls") as agent, device(live, 3) as line:
        await greet(line)
        call = await told(agent, "call.connected")
        encoder = OpusEncoder(OpusSettings(sample_rate=16_000, packet_ms=60))
        (packet,) = encoder.push(np.zeros(960, np.float32))
        for sound in (
            pack_frame(3, packet.data, 0),
            pack_frame(3, b"\xff" * 50, 0),
            pack_frame(3, b"", 0),
            b"\0",
            b"\0" * 5_000,
        ):
            await line.send(sound)
        await agent.send(json.dumps({"type": "say", "call_id": call["call_id"], "text": "Hello."}))
        assert (await told(agent, "reply.played"))["confirmed"] is False
        line.transport.abort()


WRONG_HELLOS: tuple[tuple[Any, str], ...] = (
    ({"type": "listen", "state": "detect", "text": "x"}, "invalid_event"),
    ({**HELLO, "transport": "udp"}, "invalid_event"),
    ({**HELLO, "audio_params": {"format": "pcm"}}, "unsupported_format"),
    ({**HELLO, "audio_params": [1]}, "unsupported_format"),
    ("{", "malformed_json"),
    ("[]", "invalid_event"),
)


async def test_a_hello_that_is_wrong_ends_the_line(live: LiveServer) -> None:
    for message, reason in WRONG_HELLOS:
        async with device(live) as line:
            await line.send(message if isinstance(message, str) else json.dumps(message))
            await asyncio.wait_for(line.wait_closed(), WAIT_S)
            assert line.close_reason == reason, message


async def test_admission_by_credentials() -> None:
    key = "a-key-of-enough-characters"
    async with live_server(auth__api_keys=f"home:{key}") as live:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            with pytest.raises(InvalidStatus) as refused:
                await device(live, **headers)
            assert refused.value.response.status_code == 401
        async with device(live, Authorization=f"Bearer {key}") as line:
            await greet(line)
        with pytest.raises(InvalidStatus) as refused:
            await device(live, 4, Authorization=f"Bearer {key}")
        assert refused.value.response.status_code == 400


async def test_device_that_sends_no_hello_is_closed() -> None:
    async with live_server(listen__handshake_timeout_s=0.3, calls__barge_in=False) as live, device(live) as line:
        await asyncio.wait_for(line.wait_closed(), WAIT_S)


async def test_a_device_for_which_there_is_no_session_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    async with live_server(limits__max_connections=1, limits__max_active_responses=1) as live:
        held = [live.speech.registry.create() for _ in range(2)]
        with pytest.raises(InvalidStatus) as refused:
            async with device(live):
                pass
        assert refused.value.response.status_code == 429
        assert not [record.message for record in caplog.records if record.levelname == "ERROR"]
        for session in held:
            await session.aclose()
