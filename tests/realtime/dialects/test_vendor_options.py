"""Options of single wires over real sockets: the openai package and vLLM-Omni's config."""

from __future__ import annotations

import asyncio
import io
import json
import wave
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import openai
import pytest
from openai.resources.realtime.realtime import AsyncRealtimeConnection
from openai.types.realtime import RealtimeServerEvent
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from sessions.audio.wav import wav_file
from tests.fakes.engine import FakeScript
from tests.realtime.dialects.vendor_clients import CLIENTS, KEY, LONG, dial, send
from tests.realtime.live_server import EMBEDDING_SIZE, WAIT_S, LiveServer, cloning_engine, live_server
from tests.realtime.transports.test_speech_cloning import data_uri
from tests.sessions.audio.signals import tone


async def test_a_file_of_vllm_omni_is_there_as_soon_as_it_is_made(live: LiveServer) -> None:
    client = CLIENTS["vllm-omni"]
    async with dial(live, client, max_size=None) as socket:
        await send(socket, client, [{"type": "input.text", "text": LONG[:600]}, *client.end("t1")])
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
        handshake = dial(live, CLIENTS["openai realtime"], subprotocols=offered, additional_headers={})
        if is_right:
            async with handshake as socket:
                assert socket.subprotocol == "realtime"
                assert json.loads(await socket.recv())["type"] == "session.created"
        else:
            with pytest.raises(InvalidStatus) as refused:
                await handshake
            assert refused.value.response.status_code == 401


TEXTS = ("Hello there, how are you?", "And this is another turn.")
PUBLISHED_TYPES: dict[str, type[openai.BaseModel]] = {
    get_args(published.model_fields["type"].annotation)[0]: published
    for published in get_args(get_args(RealtimeServerEvent)[0])
}


@pytest.fixture
async def connection(live: LiveServer) -> AsyncIterator[AsyncRealtimeConnection]:
    client = openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{live.port}/v1", websocket_base_url=f"{live.url}/v1", api_key=KEY, max_retries=0
    )
    async with client, client.realtime.connect(model="gpt-realtime") as opened:
        assert (await opened.recv()).type == "session.created"
        yield opened


async def write(connection: AsyncRealtimeConnection, text: str) -> None:
    content = [{"type": "input_text", "text": text}]
    await connection.conversation.item.create(item={"type": "message", "role": "user", "content": content})
    await connection.response.create()


async def test_every_event_is_of_the_published_types(live: LiveServer, connection: AsyncRealtimeConnection) -> None:
    """The package builds its events unchecked; clients such as openai-agents check each against these types."""
    live.engine.script = FakeScript(ms_per_char=60.0, real_time_factor=0.25)
    events = Events(connection)
    await connection.session.update(session={"type": "realtime", "audio": {"output": {"voice": "marin"}}})
    await events.until("session.updated")
    await write(connection, TEXTS[0])
    [item] = (await events.until("response.done"))["response"]["output"]
    item_id = item["id"]
    assert item["content"][0]["transcript"].strip() == TEXTS[0]
    await connection.conversation.item.truncate(item_id=item_id, content_index=0, audio_end_ms=300)
    await connection.conversation.item.retrieve(item_id=item_id)
    await connection.conversation.item.delete(item_id=item_id)
    await connection.input_audio_buffer.clear()
    await write(connection, LONG)
    await events.until("response.output_audio.delta")
    await connection.response.cancel()
    await events.until("response.done")
    await connection.response.create(response={"instructions": "Greet the user."})
    assert (await events.until("error"))["error"]["code"] == "response_input_empty"
    live.engine.script_next(FakeScript(fail_at_frame=0))
    await write(connection, TEXTS[1])
    assert (await events.until("response.done"))["response"]["status"] == "failed"
    assert len(events.kinds) == 18


class Events:
    """Reads raw events and checks each against the package's own types, as openai-agents does."""

    def __init__(self, connection: AsyncRealtimeConnection) -> None:
        self._connection = connection
        self.kinds: set[str] = set()

    async def until(self, kind: str) -> dict[str, Any]:
        async with asyncio.timeout(WAIT_S):
            while True:
                event: dict[str, Any] = json.loads(await self._connection.recv_bytes())
                PUBLISHED_TYPES[event["type"]].model_validate(event, strict=True)
                self.kinds.add(event["type"])
                if event["type"] == kind:
                    return event


RECORDING = data_uri(wav_file(tone(1.5, 16_000), 16_000))


@pytest.fixture
async def cloning(tmp_path: Path) -> AsyncIterator[LiveServer]:
    async with live_server(cloning_engine(), voices__folder=str(tmp_path)) as server:
        yield server


@pytest.fixture
async def socket(cloning: LiveServer) -> AsyncIterator[ClientConnection]:
    async with connect(f"{cloning.url}/v1/audio/speech/stream") as client:
        yield client


async def configure(socket: ClientConnection, **fields: object) -> None:
    await socket.send(json.dumps({"type": "session.config", "response_format": "pcm", **fields}))


async def speak(socket: ClientConnection) -> list[dict]:
    """Speak one utterance; the JSON messages up to its end."""
    await socket.send(json.dumps({"type": "input.text", "text": "Hello there."}))
    await socket.send(json.dumps({"type": "input.done"}))
    messages = []
    async for message in socket:
        if isinstance(message, str):
            messages.append(json.loads(message))
            if messages[-1]["type"] == "session.done":
                break
    return messages


async def test_sampling_of_the_config_reaches_the_engine(cloning: LiveServer, socket: ClientConnection) -> None:
    await configure(socket, temperature=0.5, subtalker_top_k=7, max_new_tokens=100, seed=3)
    await configure(socket, top_p=0.8)
    await speak(socket)
    request = cloning.engine.requests[-1]
    sampling = request.sampling
    assert (sampling.temperature, sampling.predictor_top_k, sampling.top_p, sampling.seed) == (0.5, 7, 0.8, 3)
    assert request.max_frames == 99


async def test_recording_of_the_config_holds_until_changed(cloning: LiveServer, socket: ClientConnection) -> None:
    await configure(socket, task_type="Base", ref_audio=RECORDING, ref_text="What is said.")
    await speak(socket)
    assert cloning.engine.requests[-1].voice.transcript == "What is said."
    await configure(socket, ref_audio=RECORDING, x_vector_only_mode=True)
    await speak(socket)
    assert cloning.engine.requests[-1].voice.transcript == ""
    await configure(socket, speaker_embedding=[0.5] * EMBEDDING_SIZE)
    await speak(socket)
    assert len(cloning.engine.requests[-1].voice.embedding) == 4 * EMBEDDING_SIZE
    await configure(socket, voice="ben")
    await speak(socket)
    assert cloning.engine.requests[-1].voice == "ben"
    assert len(cloning.engine.samples) == 2


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"temperature": 9.0}, "temperature"),
        ({"top_k": "many"}, "top_k"),
        ({"task_type": "Singing"}, "task_type must be"),
        ({"ref_text": "Hi."}, "without ref_audio"),
        ({"ref_audio": RECORDING, "x_vector_only_mode": False}, "ref_text is empty"),
        ({"ref_audio": "data:audio/wav;base64,@@@@"}, "base64 is broken"),
        ({"speaker_embedding": [0.0]}, "1 numbers"),
    ],
)
async def test_wrong_field_is_named_and_the_former_config_holds(
    cloning: LiveServer, socket: ClientConnection, fields: dict, words: str
) -> None:
    await configure(socket, temperature=0.5)
    await configure(socket, **fields)
    error = json.loads(await socket.recv())
    assert error["type"] == "error"
    assert words in error["message"]
    assert [message["type"] for message in await speak(socket)][-1] == "session.done"
    assert cloning.engine.requests[-1].sampling.temperature == 0.5


@pytest.mark.parametrize("switch", ["true", "false"])
async def test_elevenlabs_reads_ssml_on_request(live: LiveServer, switch: str) -> None:
    client = CLIENTS["elevenlabs single"]
    client = replace(client, path=f"{client.path}&enable_ssml_parsing={switch}")
    text = 'Hello there.<break time="2.0s" />And now this.'
    async with dial(live, client) as socket:
        await send(socket, client, [*client.say("t1", text), *client.end("t1")])
        async with asyncio.timeout(WAIT_S):
            messages = [json.loads(message) async for message in socket]
    num_bytes = sum(len(client.audio(message)) for message in messages if message.get("audio"))
    spoken = [request.text for request in live.engine.requests]
    begin = ["Hello there.", "And now"] if switch == "true" else ["Hello there.<break"]
    assert [one[: len(expected)] for one, expected in zip(spoken, begin, strict=True)] == begin
    assert (num_bytes > 2 * 24_000 * 3) is (switch == "true")


async def test_cartesia_reads_its_tags(live: LiveServer) -> None:
    client = CLIENTS["cartesia"]
    text = 'Your code is <spell>A1</spell>.<break time="2s"/><speed ratio="1.5"/>I <emotion value="sad"/><3 it.'
    async with dial(live, client) as socket:
        await send(socket, client, [*client.say("t1", text), *client.end("t1")])
        messages = []
        async with asyncio.timeout(WAIT_S):
            while not messages or not client.is_end(messages[-1], "t1"):
                messages.append(json.loads(await socket.recv()))
    code, middle, rest = live.engine.requests
    assert (code.text, middle.text.strip(), rest.text[:2]) == ("Your code is A one.", "I", "<3")
    assert [code.instruct, middle.instruct, rest.instruct] == ["", "", "Tone of voice: sad."]
    assert not any(client.is_error(message) for message in messages)
