"""The wires that speak no plain JSON, over real sockets: Kyutai's MessagePack and Rime's protocol buffers."""

from __future__ import annotations

import asyncio
import io
import json
import wave
from typing import Any

import msgspec
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from realtime.protocol.dialects.protobuf import decode, encode
from realtime.protocol.dialects.rime_envelope import BINARY, REQUEST, RESPONSE
from tests.fakes.engine import FakeScript, FakeSpeechEngine
from tests.realtime.live_server import QUICK, WAIT_S, LiveServer, live_server

KEY = "a-key-of-enough-characters"
HEADERS = {"Authorization": f"Bearer {KEY}"}
WORDS = ["Hello", "there,", "how", "are", "you?"]
LONG = "This is one sentence of a very long story. " * 60
SLOW = FakeScript(ms_per_char=60.0, real_time_factor=0.25)


def dial(live: LiveServer, path: str, **options: Any) -> connect:
    return connect(live.url + path, **({"compression": None, "proxy": None, "additional_headers": HEADERS} | options))


async def to_the_close(socket: ClientConnection) -> tuple[list[str | bytes], int | None]:
    told: list[str | bytes] = []
    async with asyncio.timeout(WAIT_S):
        try:
            while True:
                told.append(await socket.recv())
        except ConnectionClosed:
            return told, socket.close_code


def pack(kind: str, **fields: object) -> bytes:
    return msgspec.msgpack.encode({"type": kind, **fields})


async def test_kyutai_sends_words_with_times(live: LiveServer) -> None:
    async with dial(
        live, "/api/tts_streaming?format=PcmMessagePack", additional_headers={"kyutai-api-key": KEY}
    ) as socket:
        for word in WORDS:
            await socket.send(pack("Text", text=word))
        await socket.send(pack("Eos"))
        told, code = await to_the_close(socket)
    messages = [msgspec.msgpack.decode(one) for one in told]
    assert (messages[0], code) == ({"type": "Ready"}, 1000)
    assert [one["text"] for one in messages if one["type"] == "Text"] == WORDS
    steps = [one["pcm"] for one in messages if one["type"] == "Audio"]
    assert {len(step) for step in steps} == {1_920}
    assert sum(map(len, steps)) > 24_000 * len(" ".join(WORDS)) * 0.04
    assert max(map(abs, steps[3])) > 0.01


@pytest.mark.parametrize(("kind", "begins"), [("Pcm", b""), ("OggOpus", b"OggS"), ("OggOpusMessagePack", b"")])
async def test_kyutai_in_its_other_formats(live: LiveServer, kind: str, begins: bytes) -> None:
    async with dial(live, f"/api/tts_streaming?format={kind}&auth_id={KEY}", additional_headers={}) as socket:
        await socket.send(" ".join(WORDS))
        await socket.send(b"\0")
        told, code = await to_the_close(socket)
    assert (code, len(told) > 2) == (1000, True)
    assert isinstance(told[0], bytes)
    assert told[0].startswith(begins)


@pytest.mark.parametrize("state", ["connected", "speaking", "ended"])
async def test_a_kyutai_client_that_drops_leaves_nothing(state: str) -> None:
    async with live_server(FakeSpeechEngine(SLOW)) as live:
        socket = await dial(live, "/api/tts_streaming?format=Pcm")
        if state != "connected":
            await socket.send(LONG)
            await socket.recv()
        if state == "ended":
            await socket.send(b"\0")
        socket.transport.abort()
        await live.freed()
        await socket.wait_closed()


def rime(context: str, **payload: object) -> bytes:
    return encode({"context_id": context, **payload}, REQUEST)


async def rime_told(socket: ClientConnection, *ends: str) -> tuple[bytes, dict[str, Any]]:
    audio = b""
    async with asyncio.timeout(WAIT_S):
        while True:
            message = decode(await socket.recv(), RESPONSE)  # type: ignore[arg-type]
            audio += message.get("audio", b"")
            if set(message) & set(ends):
                return audio, message


async def test_rime_in_protocol_buffers(live: LiveServer) -> None:
    async with dial(live, "/ws", subprotocols=[BINARY]) as socket:
        assert socket.subprotocol == BINARY
        assert (await rime_told(socket, "ready"))[1]["ready"]["protocol"] == 1
        for turn in ("t1", "t2"):
            await socket.send(rime(turn, start={"timestamps": {"enable": True}, "split_strategy": 3}))
            for word in WORDS:
                await socket.send(rime(turn, text=f"{word} "))
            await socket.send(rime(turn, end={}))
            audio, done = await rime_told(socket, "done")
            assert len(audio) > 2 * 24_000 * len(" ".join(WORDS)) * 0.04
            assert [span["text"] for span in done["done"]["timestamps"]["spans"]] == WORDS


async def test_rime_is_cancelled_and_goes_on() -> None:
    engine = FakeSpeechEngine(SLOW)
    async with live_server(engine) as live:
        async with dial(live, "/ws", subprotocols=[BINARY]) as socket:
            await socket.send(rime("t1", start={}))
            await socket.send(rime("t1", text=LONG))
            await rime_told(socket, "audio")
            await socket.send(rime("t1", cancel={}))
            await rime_told(socket, "cancelled")
            engine.script = QUICK
            await socket.send(rime("t1", start={"text": "Hello there."}))
            assert (await rime_told(socket, "done"))[0]
        await live.freed()


async def test_rime_takes_a_key_in_its_first_message(live: LiveServer) -> None:
    for key, ends in ((KEY, "done"), (KEY + "x", "error")):
        async with dial(live, "/ws", subprotocols=[BINARY], additional_headers={}) as socket:
            await socket.send(encode({"config": {"authorization": f"Api-Key {key}"}}, REQUEST))
            await socket.send(rime("c", start={"text": "Hello there."}))
            _, last = await rime_told(socket, "done", "error")
            assert ends in last


async def test_rime_without_a_sub_protocol_is_refused(live: LiveServer) -> None:
    with pytest.raises(InvalidStatus) as refused:
        await dial(live, "/ws")
    assert refused.value.response.status_code == 400


async def test_rime_that_cannot_be_read_is_closed_upon(live: LiveServer) -> None:
    async with dial(live, "/ws", subprotocols=[BINARY]) as socket:
        await socket.send(b"\xff")
        told, code = await to_the_close(socket)
        assert (code, decode(told[-1], RESPONSE)["error"]["kind"]) == (1007, "invalid_input")  # type: ignore[arg-type]


async def test_a_file_of_vllm_omni_is_there_as_soon_as_it_is_made(live: LiveServer) -> None:
    async with dial(live, "/v1/audio/speech/stream", max_size=None) as socket:
        await socket.send(json.dumps({"type": "input.text", "text": LONG[:600]}))
        await socket.send(json.dumps({"type": "input.done"}))
        told = []
        async with asyncio.timeout(WAIT_S):
            while not told or isinstance(told[-1], bytes) or json.loads(told[-1])["type"] != "session.done":
                told.append(await socket.recv())
    files = [one for one in told if isinstance(one, bytes)]
    assert len(files) == 1
    with wave.open(io.BytesIO(files[0])) as file:
        assert file.getnframes() > 24_000 * 600 * 0.04 * 0.9


async def test_realtime_accepts_key_of_browser_in_subprotocol(live: LiveServer) -> None:
    for key, is_right in ((KEY, True), (KEY + "x", False)):
        offered = ["realtime", f"openai-insecure-api-key.{key}"]
        handshake = dial(live, "/v1/realtime?model=gpt-realtime", subprotocols=offered, additional_headers={})
        if is_right:
            async with handshake as socket:
                assert socket.subprotocol == "realtime"
                assert json.loads(await socket.recv())["type"] == "session.created"
        else:
            with pytest.raises(InvalidStatus) as refused:
                await handshake
            assert refused.value.response.status_code == 401
