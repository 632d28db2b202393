"""Every vendor's wire over real connections, by WebSocket and HTTP, and what goes wrong there."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from contextlib import suppress
from dataclasses import replace
from typing import Any

import httpx2 as httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from realtime.protocol import events as ev
from realtime.protocol.dialects.base import DialectRoute
from realtime.protocol.dialects.registry import DIALECT_ROUTES
from sessions import response
from sessions.audio.pcm import Pcm
from sessions.events import HeardText
from sessions.timeline import ResponseTimeline, SegmentTimeline
from tests.fakes.engine import FakeScript, FakeSpeechEngine
from tests.fakes.engine_script import FRAME_SAMPLES
from tests.realtime.dialects.chaotic_client import ChaoticClient
from tests.realtime.dialects.exchange import messages_of
from tests.realtime.dialects.vendor_clients import (
    CLIENTS,
    KEY,
    LEAST_BYTES,
    LONG,
    RAW,
    TEXT,
    VendorClient,
    dial,
    every,
    hear,
    hear_first_audio,
    hear_to_the_close,
    read,
    send,
    turn,
)
from tests.realtime.live_server import QUICK, WAIT_S, LiveServer, live_server, speak, until

SLOW = FakeScript(ms_per_char=60.0, real_time_factor=0.25)
STALL_FRAME = 12
# About a second of speech, and then none.
STALLED = FakeScript(ms_per_char=60.0, real_time_factor=0.25, stalls_s={STALL_FRAME: 1_000.0})


@every
async def test_two_turns_on_a_socket(live: LiveServer, client: VendorClient) -> None:
    async with dial(live, client) as socket:
        for name in ("t1",) if client.one_turn else ("t1", "t2"):
            assert len(await turn(socket, client, name)) > LEAST_BYTES
        if client.one_turn:
            assert (await hear_to_the_close(socket, client))[0] == 1000


@every
async def test_audio_equals_native_wire(client: VendorClient) -> None:
    async with live_server(FakeSpeechEngine(QUICK)) as live:
        async with live.session() as native:
            pcm = ev.NativeAudioFormat(encoding="pcm_s16le", sample_rate=24_000)
            spoken = await speak(native, TEXT, format=pcm)
            expected = b"".join(packet for message in spoken.audio for packet in message.packets)
        async with dial(live, client) as socket:
            assert (await turn(socket, client, "t1"))[: len(expected)] == expected


@every
async def test_an_interruption_and_a_turn_after_it(client: VendorClient) -> None:
    engine = FakeSpeechEngine(SLOW)
    async with live_server(engine) as live, dial(live, client) as socket:
        await send(socket, client, client.say("t1", LONG))
        await hear_first_audio(socket, client)
        if not client.cancel("t1"):
            return
        await send(socket, client, client.cancel("t1"))
        if not client.cancel_is_silent:
            _, said = await hear(socket, client, "t1")
            assert not any(map(client.is_error, said))
        engine.script = QUICK
        audio = await turn(socket, client, "t2")
        assert LEAST_BYTES < len(audio) < 3 * LEAST_BYTES


@every
async def test_unsent_word_times_delay_nothing(client: VendorClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next of a line begins when the one before has told its end."""
    kept: list[int] = []
    pushed: list[int] = []
    heard, num_kept, push = ResponseTimeline.heard_text, ResponseTimeline.num_pending_bytes, SegmentTimeline.push

    def count(segment: SegmentTimeline, pcm: Pcm) -> None:
        pushed.append(pcm.size)
        push(segment, pcm)

    def note(told: ResponseTimeline, played_samples: int, **how: bool) -> HeardText:
        kept.append(num_kept(told, played_samples))
        return heard(told, played_samples, **how)

    monkeypatch.setattr(ResponseTimeline, "heard_text", note)
    monkeypatch.setattr(SegmentTimeline, "push", count)
    monkeypatch.setattr(response, "MAX_INLINE_ALIGN_BYTES", 10**9)  # nothing is looked through before it is needed
    if not client.cancel("t1"):
        pytest.skip("nothing cancels but the end of the line")
    listening = live_server(FakeSpeechEngine(STALLED), speech__aligner="letters")
    async with listening as live, dial(live, client) as socket:
        await send(socket, client, client.say("t1", LONG) + client.end("t1"))
        await hear_first_audio(socket, client)
        spare_moments = live.speech.registry._services.idle_backlog
        await until(lambda: sum(pushed) == STALL_FRAME * FRAME_SAMPLES and not spare_moments.num_bytes)
        await send(socket, client, client.cancel("t1"))
        async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(read_on(socket))
            while not kept:
                await asyncio.sleep(0.01)
            reading.cancel()
    assert not any(kept)


async def read_on(socket: ClientConnection) -> None:
    async for _ in socket:
        pass


@every
@pytest.mark.parametrize("text", ["", " ", "...", "😀"])
async def test_turn_without_speech_ends(live: LiveServer, client: VendorClient, text: str) -> None:
    if client.name == "deepgram flux" and not text:
        pytest.skip("no text, no turn")
    async with dial(live, client) as socket:
        assert await turn(socket, client, "t1", text) == b""


LINES = [("ada", "Hello there."), ("ben", "Well, how are you?"), ("ada", "Good."), ("ada", "Bye."), ("ben", "Bye.")]


@pytest.mark.parametrize("name", ["elevenlabs dialogue", "elevenlabs single dialogue"])
async def test_each_line_of_a_dialogue_has_its_voice(live: LiveServer, name: str) -> None:
    """All lines at once or a line at a time: the same voices in the same order, one signal without a gap."""
    client = CLIENTS[name]
    inputs = [{"voice_id": voice, "text": text} for voice, text in LINES]
    for pieces in ([inputs], [[each] for each in inputs]):
        live.engine.requests.clear()
        async with dial(live, client) as socket:
            begin = {"context_id": "t1", "voices": ["ada", "ben"]}
            await send(
                socket, client, [begin, *({"context_id": "t1", "inputs": piece} for piece in pieces), *client.end("t1")]
            )
            audio, said = await hear(socket, client, "t1")
        assert [request.voice for request in live.engine.requests] == ["ada", "ben", "ada", "ben"]
        assert sum("is_final_audio_for_turn" in message for message in said) == 4
        assert sum("is_final" in message for message in said) == 1
        assert len(audio) > 2 * 24_000 * sum(len(text) for _, text in LINES) * 0.04 * 0.9


async def test_an_interruption_ends_all_lines_of_a_dialogue() -> None:
    client = CLIENTS["elevenlabs dialogue"]
    engine = FakeSpeechEngine(SLOW)
    async with live_server(engine) as live, dial(live, client) as socket:
        inputs = [{"voice_id": voice, "text": text * 20} for voice, text in LINES]
        await send(socket, client, [{"context_id": "t1", "voices": ["ada", "ben"], "inputs": inputs}])
        await hear_first_audio(socket, client)
        await send(socket, client, client.cancel("t1"))
        await hear(socket, client, "t1")
        assert [request.voice for request in engine.requests] == ["ada"]
        engine.script = QUICK
        assert await turn(socket, client, "t1")


async def test_a_dialogue_is_one_context_and_one_response() -> None:
    client = CLIENTS["elevenlabs dialogue"]
    limits = {"dialects__max_contexts_per_connection": 1, "limits__max_active_responses": 1}
    async with live_server(FakeSpeechEngine(QUICK), **limits) as live, dial(live, client) as socket:
        inputs = [{"voice_id": voice, "text": text} for voice, text in [*LINES, ("nobody", "Who?"), *LINES]]
        await send(socket, client, [{"context_id": "t1", "voices": ["ada"], "inputs": inputs}, *client.end("t1")])
        _, said = await hear(socket, client, "t1")
        voices = ["ada", "ben"] * 2
        assert [request.voice for request in live.engine.requests] == [*voices, "ada", *voices]
        words = "".join(spoken(message) for message in said).split()
        assert words == " ".join(line["text"] for line in inputs).split()


@pytest.mark.parametrize(
    "name", ["elevenlabs multi", "cartesia", "elevenlabs dialogue", "kyutai", "rime v1", "inworld"]
)
async def test_word_times_on_sockets(live: LiveServer, name: str) -> None:
    client = CLIENTS[name]
    async with dial(live, client) as socket:
        await send(socket, client, client.say("t1", TEXT) + client.end("t1"))
        _, said = await hear(socket, client, "t1")
    assert "".join(spoken(message) for message in said).split() == TEXT.split()


def spoken(message: dict[str, Any]) -> str:
    """The text that a message has times of."""
    match message:
        case {"word_timestamps": words} | {"result": {"audioChunk": {"timestampInfo": {"wordAlignment": words}}}}:
            return " ".join(words["words"]) + " "
        case {"done": {"timestamps": {"spans": spans}}}:
            return " ".join(span["text"] for span in spans)
        case {"type": "Text", "text": text}:
            return f"{text} "
        case {"alignment": {"chars": chars}}:
            return "".join(chars)
    return ""


HTTP = [
    ("/v1/text-to-speech/zoe?output_format=pcm_24000", {"text": TEXT}, "audio/pcm"),
    ("/v1/text-to-speech/zoe/stream", {"text": TEXT, "model_id": "eleven_flash_v2_5"}, "audio/mpeg"),
    ("/v1/text-to-speech/zoe/stream?output_format=opus_48000_32", {"text": TEXT}, "audio/ogg"),
    ("/v1/text-to-speech/zoe/stream/with-timestamps?output_format=pcm_16000", {"text": TEXT}, "application/x-ndjson"),
    ("/v1/text-to-speech/zoe/with-timestamps?output_format=pcm_16000", {"text": TEXT}, "application/json"),
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
async def test_over_http(live: LiveServer, path: str, body: dict[str, Any], media_type: str) -> None:
    async with live.http() as http:
        answer = await http.post(path, json=body, headers={"xi-api-key": KEY})
        assert (answer.status_code, answer.headers["Content-Type"]) == (200, media_type)
        assert len(answer.content) > 5_000
        assert "zoe" in answer.headers.get("X-Voicewire-Warning", "zoe")
        refused = await http.post(path, json=body, headers={"xi-api-key": KEY + "x"})
        assert refused.status_code == 401


async def test_a_dialogue_over_http_has_many_voices(live: LiveServer) -> None:
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
        file = await http.post(f"{path}wav_24000", json=body, headers=shown)
        assert file.content.count(b"RIFF") == 1
        assert len(file.content) > len(answer.content)
        live.engine.script = FakeScript(fail_at_frame=0)
        failed = await http.post(f"{path}pcm_24000", json=body, headers=shown)
        assert (failed.status_code, failed.json()["detail"]["status"]) == (500, "engine_error")


@pytest.mark.parametrize("path", ["with-timestamps", "stream/with-timestamps"])
async def test_times_of_a_dialogue_name_input_and_voice(live: LiveServer, path: str) -> None:
    inputs = [{"text": text, "voice_id": voice} for voice, text in [("ada", "[sad] Oh no. "), ("ada", " "), *LINES]]
    async with live.http() as http:
        shown, address = {"xi-api-key": KEY}, f"/v1/text-to-dialogue/{path}?output_format=pcm_24000"
        answer = await http.post(address, json={"inputs": inputs}, headers=shown)
        refused = await http.post(address, json={"inputs": [{"text": " "}]}, headers=shown)
    assert refused.status_code == 400
    messages = [json.loads(line) for line in answer.text.splitlines()]
    said: dict[int, str] = {}
    last_s = 0.0
    for message in messages:
        for segment in message["voice_segments"]:
            index = segment["dialogue_input_index"]
            assert segment["voice_id"] == inputs[index]["voice_id"]
            assert last_s <= segment["start_time_seconds"] <= segment["end_time_seconds"]
            last_s = segment["start_time_seconds"]
            start, end = segment["character_start_index"], segment["character_end_index"]
            said[index] = said.get(index, "") + "".join(message["alignment"]["characters"][start:end])
    assert said == {0: "Oh no. "} | {index + 2: f"{text} " for index, (_, text) in enumerate(LINES)}
    assert sum(len(base64.b64decode(message["audio_base64"])) for message in messages) > 24_000


TAGS = "[cheerful] Hello [laughs] there. [pause] So."
TAGGED = [
    ("/v1/text-to-speech/zoe", {"text": TAGS, "model_id": "eleven_v3"}, True),
    ("/v1/text-to-speech/zoe", {"text": TAGS, "model_id": "eleven_flash_v2_5"}, False),
    (
        "/v1/text-to-speech/zoe?enable_ssml_parsing=true",
        {"text": f"<speak>{TAGS}</speak>", "model_id": "eleven_v3"},
        True,
    ),
    ("/v1/text-to-speech/zoe", {"text": TAGS}, False),
    ("/v1/text-to-dialogue", {"inputs": [{"text": TAGS}]}, True),
    ("/tts/v1/voice:stream", {"text": TAGS, "modelId": "inworld-tts-1"}, True),
    ("/tts/bytes", {"transcript": TAGS, "output_format": RAW}, False),
    ("/v1/speak", {"text": TAGS}, False),
]


@pytest.mark.parametrize(("path", "body", "has_tags"), TAGGED)
async def test_bracket_tags_set_the_tone_where_the_vendor_has_them(
    live: LiveServer, path: str, body: dict[str, Any], has_tags: bool
) -> None:
    async with live.http() as http:
        answer = await http.post(path, json=body, headers={"xi-api-key": KEY})
    assert answer.status_code == 200
    told = [(request.instruct, " ".join(request.text.split())) for request in live.engine.requests]
    tone = "Tone of voice: cheerful."
    assert told == ([(tone, "Hello there."), (tone, "So.")] if has_tags else [("", TAGS)])


@pytest.mark.parametrize(("model", "has_tags"), [("eleven_v3", True), ("eleven_turbo_v2_5", False)])
async def test_model_of_a_socket_decides_about_bracket_tags(live: LiveServer, model: str, has_tags: bool) -> None:
    client = CLIENTS["elevenlabs multi"]
    client = replace(client, path=f"{client.path}&model_id={model}")
    async with dial(live, client) as socket:
        await turn(socket, client, "t1", "[cheerful] Hello there.")
    [request] = live.engine.requests
    assert request.text.startswith("[cheerful]") is not has_tags
    assert request.instruct == ("Tone of voice: cheerful." if has_tags else "")


async def test_what_a_client_names_ends_no_header(live: LiveServer) -> None:
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
async def test_bad_bodies_over_http(live: LiveServer, path: str) -> None:
    async with live.http() as http:
        for body, status in (
            (b"{", 400),
            (b"{}", 400),
            (b'{"text":" ","transcript":"","inputs":[]}', 400),
            (b"x" * 300_000, 413),
        ):
            answer = await http.post(path, content=body, headers={"xi-api-key": KEY})
            assert (answer.status_code, bool(answer.json())) == (status, True)


async def test_a_body_that_breaks_off(live: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", live.port)
    head = f"POST /tts/bytes HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: {KEY}\r\nContent-Length: 100\r\n\r\n{{"
    writer.write(head.encode())
    await until(lambda: live.speech.num_connections == 1)
    writer.close()
    await live.freed()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize("output_format", ["pcm_16000", "mp3_44100_128"])
async def test_timestamps_as_one_document_are_those_of_the_stream(live: LiveServer, output_format: str) -> None:
    asked = {"json": {"text": TEXT, "seed": 1}, "headers": {"xi-api-key": KEY}}
    query = f"?output_format={output_format}"
    async with live.http() as http:
        answer = await http.post(f"/v1/text-to-speech/ada/with-timestamps{query}", **asked)
        stream = await http.post(f"/v1/text-to-speech/ada/stream/with-timestamps{query}", **asked)
    told, lines = answer.json(), [json.loads(line) for line in stream.text.splitlines()]
    audio = base64.b64decode(told["audio_base64"], validate=True)
    assert audio == b"".join(base64.b64decode(line["audio_base64"]) for line in lines)
    assert len(audio) > 5_000
    for name in ("alignment", "normalized_alignment"):
        times = [line[name] for line in lines if line[name]]
        assert told[name] == {field: [value for each in times for value in each[field]] for field in times[0]}


async def test_timestamps_of_a_text_of_signs_are_a_document_too(live: LiveServer) -> None:
    async with live.http() as http:
        path = "/v1/text-to-speech/ada/with-timestamps?output_format=pcm_16000"
        answer = await http.post(path, json={"text": "--- ***"}, headers={"xi-api-key": KEY})
    assert answer.json() == {"audio_base64": "", "alignment": None, "normalized_alignment": None}


async def test_failure_over_http_has_a_status_or_cuts_the_body(live: LiveServer) -> None:
    live.engine.script_next(FakeScript(fail_at_frame=0), FakeScript(fail_at_frame=5, real_time_factor=0.02))
    async with live.http() as http:
        asked = {"json": {"text": TEXT}, "headers": {"xi-api-key": KEY}}
        answer = await http.post("/v1/text-to-speech/ada/with-timestamps", **asked)
        with pytest.raises(httpx.RemoteProtocolError):
            await http.post("/v1/text-to-speech/ada/stream?output_format=pcm_16000", **asked)
    assert (answer.status_code, answer.json()["detail"]["status"]) == (500, "engine_error")


async def test_timestamps_as_json_lines_and_as_events(live: LiveServer) -> None:
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


@every
@pytest.mark.parametrize("state", ["connected", "open", "cancelled", "ended", "over"])
async def test_a_socket_dropped_in_any_state_leaves_nothing(live: LiveServer, client: VendorClient, state: str) -> None:
    socket = await dial(live, client)
    if state == "cancelled":
        await send(socket, client, client.say("t1", LONG))
        await hear_first_audio(socket, client)
        await send(socket, client, client.cancel("t1"))
    elif state != "connected":
        await send(socket, client, client.say("t1", TEXT))
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
    async with (
        live_server(slow, limits__max_active_responses=1, limits__max_errors_per_connection=4) as live,
        live.session() as other,
        dial(live, client) as socket,
    ):
        await other.send(ev.ResponseCreate(response_id="r", text=TEXT))
        await until(lambda: live.speech.num_active_responses == 1)
        with suppress(ConnectionClosed):
            for number in range(12):
                await send(socket, client, client.say(f"t{number}", TEXT) + client.end(f"t{number}"))
        assert (await hear_to_the_close(socket, client))[0] == 1008


@pytest.mark.parametrize("name", ["cartesia", "elevenlabs multi", "elevenlabs dialogue", "rime v1"])
async def test_refused_text_counts_as_errors(name: str) -> None:
    client = CLIENTS[name]
    slow = FakeSpeechEngine(FakeScript(first_chunk_s=60.0))
    async with live_server(slow, limits__max_errors_per_connection=4) as live, dial(live, client) as socket:
        await send(socket, client, client.say("t1", TEXT) + client.end("t1"))
        with suppress(ConnectionClosed):
            for _ in range(12):
                await send(socket, client, client.say("t1", TEXT)[-1:])
        assert (await hear_to_the_close(socket, client))[0] == 1008


UNKNOWN = (
    {"type": "shout", "shout": {"loud": True}, "frobnicate": [1, None]},
    {"contextId": "t9", "context_id": "t9"},
    {},
)


@every
@pytest.mark.parametrize("number", range(len(UNKNOWN)))
async def test_unknown_message_is_ignored_or_an_error(live: LiveServer, client: VendorClient, number: int) -> None:
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
    async with (
        live_server(FakeSpeechEngine(FakeScript(fail_at_frame=2, real_time_factor=0.02))) as live,
        dial(live, client) as socket,
    ):
        await send(socket, client, client.say("t1", TEXT) + client.end("t1"))
        async with asyncio.timeout(WAIT_S):
            while not client.is_error(read(client, await socket.recv())[1]):
                pass


@every
async def test_draining_server_ends_the_turn_then_says_goodbye(client: VendorClient) -> None:
    async with (
        live_server(FakeSpeechEngine(QUICK), listen__drain_timeout_s=WAIT_S) as live,
        dial(live, client) as socket,
    ):
        await send(socket, client, client.say("t1", TEXT))
        await hear_first_audio(socket, client)
        draining = asyncio.create_task(live.speech.drain())
        await send(socket, client, client.end("t1"))
        code, _ = await hear_to_the_close(socket, client)
        assert code == (1000 if client.one_turn else 1012)
        await draining


async def test_the_single_socket_is_closed_when_nothing_is_written() -> None:
    client = replace(CLIENTS["elevenlabs single"], path="/v1/text-to-speech/zoe/stream-input?inactivity_timeout=1")
    async with live_server() as live, dial(live, client) as socket:
        await send(socket, client, client.say("t1", TEXT))
        code, said = await hear_to_the_close(socket, client)
        assert (code, said[-1]["message"]) == (
            1008,
            "Have not received a new text input within the timeout of 1 seconds.",
        )


CHAOS_MESSAGES = 150


@pytest.mark.parametrize(
    "wire", [wire for wire in DIALECT_ROUTES if wire.transport == "socket"], ids=lambda wire: wire.path
)
async def test_any_client_messages_leave_nothing_behind(live: LiveServer, wire: DialectRoute) -> None:
    rng = random.Random(7)
    chaos = ChaoticClient(rng, messages_of(wire.path))
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


@every
@pytest.mark.parametrize("place", ["xi-api-key", "X-API-Key", "Bearer", "Token", "raw", "Basic", "query", "token, KEY"])
async def test_keys_in_every_place(live: LiveServer, client: VendorClient, place: str) -> None:
    for key, is_right in ((KEY, True), (KEY + "x", False)):
        options, query = shown(place, key, client)
        at = replace(client, path=client.path + query)
        handshake = dial(live, at, additional_headers=options.get("additional_headers", {}), **without(options))
        if is_right:
            await (await handshake).close()
            continue
        with pytest.raises(InvalidStatus) as refused:
            await handshake
        assert refused.value.response.status_code == 401


def without(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "additional_headers"}


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
async def test_a_client_without_a_key(live: LiveServer, client: VendorClient) -> None:
    if client.key_first is None:
        with pytest.raises(InvalidStatus) as refused:
            await dial(live, client, additional_headers={})
        assert refused.value.response.status_code == 401
        return
    for key, heard in ((KEY, True), (KEY + "x", False)):
        async with dial(live, client, additional_headers={}) as socket:
            first, *rest = client.say("t1", TEXT) + client.end("t1")
            await send(socket, client, [*client.key_first(key, first), *rest])
            if heard:
                assert (await hear(socket, client, "t1"))[0]
            else:
                code, said = await hear_to_the_close(socket, client)
                assert (code, client.is_error(said[-1])) == (1008, True)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/v1/text-to-speech/zoe/stream-input", {"detail": {"status": "invalid_api_key"}}),
        ("/tts/websocket", {"error_code": "unauthorized", "status_code": 401}),
        ("/v1/speak", {"err_code": "UNAUTHORIZED"}),
    ],
)
async def test_refusals_have_the_vendors_shape(live: LiveServer, path: str, said: dict[str, Any]) -> None:
    with pytest.raises(InvalidStatus) as refused:
        await connect(live.url + path, additional_headers={"xi-api-key": "wrong"}, compression=None, proxy=None)
    body = json.loads(refused.value.response.body or b"")
    for name, value in said.items():
        assert body[name] == value or body[name].items() >= value.items()
