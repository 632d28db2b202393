"""Every vendor's wire over real sockets, with the fake engine behind it."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from realtime.protocol import events as ev
from realtime.protocol.dialects.registry import WIRES, Wire
from tests.fakes.engine import FakeScript, FakeSpeechEngine
from tests.realtime.dialects.chaos import ChaoticClient
from tests.realtime.dialects.clients import CLIENTS, RAW, VendorClient, read
from tests.realtime.dialects.right import RIGHT
from tests.realtime.live import QUICK, WAIT_S, Live, live_server, speak, until

KEY = "a-key-of-enough-characters"
TEXT = "Hello there, how are you today?"
LONG = "This is one sentence of a very long story. " * 60
LEAST_BYTES = 2 * 24_000 * len(TEXT) * 0.04 * 0.9
SLOW = FakeScript(ms_per_char=60.0, real_time_factor=0.25)

every = pytest.mark.parametrize("client", CLIENTS.values(), ids=lambda client: client.name)


@pytest.fixture
async def live() -> AsyncIterator[Live]:
    async with live_server(FakeSpeechEngine(QUICK), auth__api_keys=f"agent:{KEY}") as server:
        yield server
        await server.freed()


def dial(live: Live, client: VendorClient, **options: Any) -> connect:
    settings = {"compression": None, "proxy": None, "additional_headers": {"Authorization": f"Bearer {KEY}"}} | options
    return connect(live.url + client.path, **settings)


async def send(socket: ClientConnection, messages: list[dict[str, Any]]) -> None:
    for message in messages:
        await socket.send(json.dumps(message))


async def turn(socket: ClientConnection, client: VendorClient, name: str, text: str = TEXT) -> bytes:
    await send(socket, client.say(name, text) + client.end(name))
    return (await hear(socket, client, name))[0]


async def hear(socket: ClientConnection, client: VendorClient, name: str) -> tuple[bytes, list[dict[str, Any]]]:
    """Up to the end of a turn."""
    audio, said = b"", []
    async with asyncio.timeout(WAIT_S):
        while True:
            data, message = read(client, await socket.recv())
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


@every
async def test_two_turns_on_a_socket(live: Live, client: VendorClient) -> None:
    async with dial(live, client) as socket:
        for name in ("t1",) if client.one_turn else ("t1", "t2"):
            assert len(await turn(socket, client, name)) > LEAST_BYTES
        if client.one_turn:
            assert (await hear_to_the_close(socket, client))[0] == 1000


@every
async def test_the_sound_is_that_of_the_native_wire(client: VendorClient) -> None:
    async with live_server(FakeSpeechEngine(QUICK)) as live:
        async with live.session() as native:
            pcm = ev.Format(encoding="pcm_s16le", sample_rate=24_000)
            spoken = await speak(native, TEXT, format=pcm)
            expected = b"".join(packet for message in spoken.audio for packet in message.packets)
        async with dial(live, client) as socket:
            assert (await turn(socket, client, "t1"))[: len(expected)] == expected


@every
async def test_an_interruption_and_a_turn_after_it(client: VendorClient) -> None:
    engine = FakeSpeechEngine(SLOW)
    async with live_server(engine) as live:
        async with dial(live, client) as socket:
            await send(socket, client.say("t1", LONG))
            await hear_first_audio(socket, client)
            if not client.cancel("t1"):
                return
            await send(socket, client.cancel("t1"))
            if not client.cancel_is_silent:
                _, said = await hear(socket, client, "t1")
                assert not any(map(client.is_error, said))
            engine.script = QUICK
            audio = await turn(socket, client, "t2")
            assert LEAST_BYTES < len(audio) < 3 * LEAST_BYTES
        await live.freed()


@every
@pytest.mark.parametrize("text", ["", " ", "...", "😀"])
async def test_a_turn_with_nothing_to_say_ends_too(live: Live, client: VendorClient, text: str) -> None:
    if client.name == "deepgram flux" and not text:
        pytest.skip("no text, no turn")
    async with dial(live, client) as socket:
        assert await turn(socket, client, "t1", text) == b""


@every
@pytest.mark.parametrize("state", ["connected", "open", "speaking", "cancelled", "ended", "over"])
async def test_a_socket_dropped_in_any_state_leaves_nothing(live: Live, client: VendorClient, state: str) -> None:
    socket = await dial(live, client)
    if state in ("speaking", "cancelled"):
        await send(socket, client.say("t1", LONG))
        await hear_first_audio(socket, client)
    elif state != "connected":
        await send(socket, client.say("t1", TEXT))
    if state == "cancelled":
        await send(socket, client.cancel("t1"))
    if state in ("ended", "over"):
        await send(socket, client.end("t1"))
    if state == "over":
        await hear(socket, client, "t1")
    socket.transport.abort()
    await live.freed()
    await socket.wait_closed()


@every
async def test_a_message_that_breaks_the_wire(live: Live, client: VendorClient) -> None:
    for message, close in (("{", client.close_after_bad_json), (b"\0", client.close_after_bad_json)):
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


@every
async def test_an_engine_that_dies_is_told_in_the_wires_words(client: VendorClient) -> None:
    async with live_server(FakeSpeechEngine(FakeScript(fail_at_frame=2, real_time_factor=0.02))) as live:
        async with dial(live, client) as socket:
            await send(socket, client.say("t1", TEXT) + client.end("t1"))
            async with asyncio.timeout(WAIT_S):
                while not client.is_error(read(client, await socket.recv())[1]):
                    pass
        await live.freed()


@every
@pytest.mark.parametrize("place", ["xi-api-key", "X-API-Key", "Bearer", "Token", "raw", "Basic", "query", "token, KEY"])
async def test_keys_in_every_place(live: Live, client: VendorClient, place: str) -> None:
    for key, is_right in ((KEY, True), (KEY + "x", False)):
        options, query = shown(place, key, client)
        handshake = connect(live.url + client.path + query, compression=None, proxy=None, **options)
        if is_right:
            await (await handshake).close()
            continue
        with pytest.raises(InvalidStatus) as refused:
            await handshake
        assert refused.value.response.status_code == 401


def shown(place: str, key: str, client: VendorClient) -> tuple[dict[str, Any], str]:
    match place:
        case "query":
            return {}, f"&{client.key_in_query}={key}"
        case "token, KEY":
            return {"subprotocols": ["token", key]}, ""
        case "raw":
            return {"additional_headers": {"Authorization": key}}, ""
        case "Bearer" | "Token" | "Basic":
            return {"additional_headers": {"Authorization": f"{place} {key}"}}, ""
        case _:
            return {"additional_headers": {place: key}}, ""


@every
async def test_a_client_without_a_key(live: Live, client: VendorClient) -> None:
    if "elevenlabs" not in client.name:
        with pytest.raises(InvalidStatus) as refused:
            await dial(live, client, additional_headers={})
        assert refused.value.response.status_code == 401
        return
    for key, heard in ((KEY, True), (KEY + "x", False)):
        async with dial(live, client, additional_headers={}) as socket:
            first, *rest = client.say("t1", TEXT) + client.end("t1")
            await send(socket, [first | {"xi_api_key": key}, *rest])
            if heard:
                assert (await hear(socket, client, "t1"))[0]
            else:
                code, said = await hear_to_the_close(socket, client)
                assert (code, said[-1]["error"]) == (1008, "invalid_api_key")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/v1/text-to-speech/zoe/stream-input", {"detail": {"status": "invalid_api_key"}}),
        ("/tts/websocket", {"error_code": "unauthorized", "status_code": 401}),
        ("/v1/speak", {"err_code": "UNAUTHORIZED"}),
    ],
)
async def test_refusals_have_the_vendors_shape(live: Live, path: str, said: dict[str, Any]) -> None:
    with pytest.raises(InvalidStatus) as refused:
        await connect(live.url + path, additional_headers={"xi-api-key": "wrong"}, compression=None, proxy=None)
    body = json.loads(refused.value.response.body or b"")
    for name, value in said.items():
        assert body[name] == value or body[name].items() >= value.items()


@every
async def test_a_server_about_to_stop_lets_a_turn_end_and_says_goodbye(client: VendorClient) -> None:
    async with live_server(FakeSpeechEngine(QUICK), listen__drain_timeout_s=WAIT_S) as live:
        async with dial(live, client) as socket:
            await send(socket, client.say("t1", TEXT))
            await hear_first_audio(socket, client)
            draining = asyncio.create_task(live.speech.drain())
            await send(socket, client.end("t1"))
            code, _ = await hear_to_the_close(socket, client)
            assert code == (1000 if client.one_turn else 1012)
            await draining
        await live.freed()


async def test_the_single_socket_is_closed_when_nothing_is_written() -> None:
    client = replace(CLIENTS["elevenlabs single"], path="/v1/text-to-speech/zoe/stream-input?inactivity_timeout=1")
    async with live_server() as live, dial(live, client) as socket:
        await send(socket, client.say("t1", TEXT))
        code, said = await hear_to_the_close(socket, client)
        assert (code, said[-1]["message"]) == (
            1008,
            "Have not received a new text input within the timeout of 1 seconds.",
        )


HTTP = [
    ("/v1/text-to-speech/zoe?output_format=pcm_24000", {"text": TEXT}, "audio/pcm"),
    ("/v1/text-to-speech/zoe/stream", {"text": TEXT, "model_id": "eleven_flash_v2_5"}, "audio/mpeg"),
    ("/v1/text-to-speech/zoe/stream?output_format=opus_48000_32", {"text": TEXT}, "audio/ogg"),
    ("/v1/text-to-speech/zoe/stream/with-timestamps?output_format=pcm_16000", {"text": TEXT}, "application/x-ndjson"),
    ("/v1/text-to-dialogue/stream?output_format=wav_24000", {"inputs": [{"text": TEXT}]}, "audio/wav"),
    ("/tts/bytes", {"transcript": TEXT, "output_format": RAW, "voice": {"id": "zoe"}}, "audio/pcm"),
    ("/tts/bytes", {"transcript": TEXT, "output_format": {"container": "mp3", "sample_rate": 44_100}}, "audio/mpeg"),
    ("/tts/bytes", {"transcript": TEXT, "output_format": RAW | {"container": "wav"}}, "audio/wav"),
    ("/tts/sse", {"transcript": TEXT, "output_format": RAW, "add_timestamps": True}, "text/event-stream"),
    ("/v1/speak", {"text": TEXT}, "audio/mpeg"),
    ("/v1/speak?encoding=linear16&container=none", {"text": TEXT}, "audio/l16"),
    ("/v1/speak?encoding=linear16", {"text": TEXT}, "audio/wav"),
    ("/v1/speak?encoding=opus&model=aura-2-zoe-en", {"text": TEXT}, "audio/ogg"),
    ("/v1/speak?encoding=alaw", {"text": TEXT}, "audio/alaw"),
    ("/v2/speak?model=flux-zoe-en&encoding=linear16&container=none", {"text": TEXT}, "audio/l16"),
    ("/api/tts_streaming", {"text": TEXT, "voice": ["zoe"]}, "audio/wav"),
    ("/tts/v1/voice:stream", {"text": TEXT, "voiceId": "zoe", "timestampType": "WORD"}, "application/json"),
]


@pytest.mark.parametrize(("path", "body", "media_type"), HTTP)
async def test_over_http(live: Live, path: str, body: dict[str, Any], media_type: str) -> None:
    async with live.http() as http:
        answer = await http.post(path, json=body, headers={"xi-api-key": KEY})
        assert (answer.status_code, answer.headers["Content-Type"]) == (200, media_type)
        assert len(answer.content) > 5_000
        assert "zoe" in answer.headers.get("X-Voicewire-Warning", "zoe")
        refused = await http.post(path, json=body, headers={"xi-api-key": KEY + "x"})
        assert refused.status_code == 401


async def test_a_dialogue_over_http_has_many_voices(live: Live) -> None:
    inputs = [
        ("ada", "Hello there."),
        ("ada", "How are you?"),
        ("ben", "Well, thank you."),
        ("ada", " "),
        ("ada", "Good."),
    ]
    body = {"inputs": [{"voice_id": voice, "text": text} for voice, text in inputs]}
    async with live.http() as http:
        shown = {"xi-api-key": KEY}
        path = "/v1/text-to-dialogue/stream?output_format="
        answer = await http.post(f"{path}pcm_24000", json=body, headers=shown)
        assert [request.voice for request in live.engine.requests] == ["ada", "ben", "ada"]
        assert len(answer.content) > 2 * 24_000 * sum(len(text.strip()) for _, text in inputs) * 0.04 * 0.9
        refused = await http.post(f"{path}wav_24000", json=body, headers=shown)
        assert (refused.status_code, refused.json()["detail"]["status"]) == (400, "invalid_output_format")
        live.engine.script = FakeScript(fail_at_frame=0)
        failed = await http.post(f"{path}pcm_24000", json=body, headers=shown)
        assert (failed.status_code, failed.json()["detail"]["status"]) == (500, "engine_error")


LINES = [("ada", "Hello there."), ("ben", "Well, how are you?"), ("ada", "Good."), ("ada", "Bye."), ("ben", "Bye.")]


@pytest.mark.parametrize("name", ["elevenlabs dialogue", "elevenlabs single dialogue"])
async def test_each_line_of_a_dialogue_has_its_voice(live: Live, name: str) -> None:
    """All lines at once or a line at a time: the same voices in the same order, one signal without a gap."""
    client = CLIENTS[name]
    inputs = [{"voice_id": voice, "text": text} for voice, text in LINES]
    for pieces in ([inputs], [[each] for each in inputs]):
        live.engine.requests.clear()
        async with dial(live, client) as socket:
            begin = {"context_id": "t1", "voices": ["ada", "ben"]}
            await send(socket, [begin, *({"context_id": "t1", "inputs": piece} for piece in pieces), *client.end("t1")])
            audio, said = await hear(socket, client, "t1")
        assert [request.voice for request in live.engine.requests] == ["ada", "ben", "ada", "ben"]
        assert sum("is_final_audio_for_turn" in message for message in said) == 4
        assert sum("is_final" in message for message in said) == 1
        assert len(audio) > 2 * 24_000 * sum(len(text) for _, text in LINES) * 0.04 * 0.9


async def test_an_interruption_ends_all_lines_of_a_dialogue() -> None:
    client = CLIENTS["elevenlabs dialogue"]
    engine = FakeSpeechEngine(SLOW)
    async with live_server(engine) as live:
        async with dial(live, client) as socket:
            inputs = [{"voice_id": voice, "text": text * 20} for voice, text in LINES]
            await send(socket, [{"context_id": "t1", "voices": ["ada", "ben"], "inputs": inputs}])
            await hear_first_audio(socket, client)
            await send(socket, client.cancel("t1"))
            await hear(socket, client, "t1")
            assert [request.voice for request in engine.requests] == ["ada"]
            engine.script = QUICK
            assert await turn(socket, client, "t1")
        await live.freed()


async def test_more_voices_than_contexts_are_allowed_end_the_dialogue() -> None:
    client = CLIENTS["elevenlabs dialogue"]
    async with live_server(FakeSpeechEngine(QUICK), wires__max_contexts=3) as live:
        async with dial(live, client) as socket:
            inputs = [{"voice_id": voice, "text": text} for voice, text in [*LINES, *LINES]]
            await send(socket, [{"context_id": "t1", "voices": ["ada", "ben"], "inputs": inputs}])
            audio, said = await hear(socket, client, "t1")
            assert (audio, said[-2]["error"]) == (b"", "too_many_concurrent_requests")
        await live.freed()


async def test_what_a_client_names_ends_no_header(live: Live) -> None:
    named = "%0d%0aSet-Cookie:%20a=b%00%E2%82%AC"
    async with live.http() as http:
        answer = await http.post(f"/v1/speak?model={named}", json={"text": TEXT}, headers={"X-API-Key": KEY})
        assert answer.status_code == 200
        refused = await http.post(f"/v1/speak?encoding={named}", json={"text": TEXT}, headers={"X-API-Key": KEY})
        assert (refused.status_code, "set-cookie" in refused.headers, "set-cookie" in answer.headers) == (
            400,
            False,
            False,
        )
    async with dial(live, replace(CLIENTS["deepgram"], path=f"/v1/speak?model={named}")) as socket:
        assert "set-cookie" not in socket.response.headers


@pytest.mark.parametrize("path", sorted({path.partition("?")[0] for path, _, _ in HTTP}))
async def test_bad_bodies_over_http(live: Live, path: str) -> None:
    async with live.http() as http:
        for body, status in (
            (b"{", 400),
            (b"{}", 400),
            (b'{"text":" ","transcript":"","inputs":[]}', 400),
            (b"x" * 300_000, 413),
        ):
            answer = await http.post(path, content=body, headers={"xi-api-key": KEY})
            assert (answer.status_code, bool(answer.json())) == (status, True)


async def test_a_body_that_breaks_off(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", live.port)
    head = f"POST /tts/bytes HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: {KEY}\r\nContent-Length: 100\r\n\r\n{{"
    writer.write(head.encode())
    await until(lambda: live.speech.num_connections == 1)
    writer.close()
    await live.freed()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


CHAOS_MESSAGES = 300


@pytest.mark.parametrize("wire", [wire for wire in WIRES if wire.carrier == "socket"], ids=lambda wire: wire.path)
async def test_nothing_is_left_of_a_client_that_says_anything(live: Live, wire: Wire) -> None:
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


async def test_timestamps_as_json_lines_and_as_events(live: Live) -> None:
    async with live.http() as http:
        path = "/v1/text-to-speech/zoe/stream/with-timestamps?output_format=pcm_16000"
        lines = (await http.post(path, json={"text": TEXT}, headers={"xi-api-key": KEY})).text.splitlines()
        told = [json.loads(line)["alignment"] for line in lines]
        assert "".join(char for times in told if times for char in times["characters"]).split() == TEXT.split()
        body = {"transcript": TEXT, "output_format": RAW, "add_timestamps": True}
        events = (await http.post("/tts/sse", json=body, headers={"X-API-Key": KEY})).text.split("\n\n")
        told = [json.loads(event.partition("data: ")[2]) for event in events if event]
        words = [word for event in told if event["type"] == "timestamps" for word in event["word_timestamps"]["words"]]
        assert words == TEXT.split()
        assert told[-1] == {"type": "done", "context_id": None, "done": True, "status_code": 200}


@pytest.mark.parametrize("name", ["elevenlabs multi", "cartesia", "elevenlabs dialogue"])
async def test_word_times_on_sockets(live: Live, name: str) -> None:
    client = CLIENTS[name]
    async with dial(live, client) as socket:
        await send(socket, client.say("t1", TEXT) + client.end("t1"))
        _, said = await hear(socket, client, "t1")
    assert "".join(spoken(message) for message in said).split() == TEXT.split()


def spoken(message: dict[str, Any]) -> str:
    if words := message.get("word_timestamps"):
        return " ".join(words["words"]) + " "
    return "".join((message.get("alignment") or {}).get("chars", ""))
