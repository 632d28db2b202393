"""Each vendor's socket in a few words: how a client speaks there, and how it knows that a turn is over."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, ConnectionClosedOK

from realtime.protocol.dialects.protobuf import decode, encode
from realtime.protocol.dialects.rime_v1 import BINARY, JSON, REQUEST, RESPONSE
from sessions.audio.pcm import pcm_to_s16le
from tests.realtime.live_server import WAIT_S, LiveServer

RAW = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24_000}
Messages = list[dict[str, Any]]
_RIME_AUDIO = {"audio_format": "audio/pcm", "sampling_rate": 24_000}


@dataclass(frozen=True)
class VendorClient:
    name: str
    path: str
    # Text of a turn with this id.
    say: Callable[[str, str], Messages]
    end: Callable[[str], Messages]
    # None: clients drop the socket.
    cancel: Callable[[str], Messages]
    is_end: Callable[[dict[str, Any], str], bool]
    # In a text message; binary ones are audio as they are.
    audio: Callable[[dict[str, Any]], bytes] = lambda message: b""
    is_error: Callable[[dict[str, Any]], bool] = lambda message: message.get("type") in ("error", "Error")
    one_turn: bool = False
    cancel_is_silent: bool = False
    # Messages that cannot be read.
    broken: tuple[str | bytes, ...] = ("{", b"\0")
    close_after_broken: int | None = 1008
    key_in_query: str = "api_key"
    # A key and the first message: what is sent in its place where no key was shown before.
    key_first: Callable[[str, dict[str, Any]], Messages] | None = None
    pack: Callable[[dict[str, Any]], str | bytes] = json.dumps
    # Of binary messages, where they are not audio as they are.
    unpack: Callable[[bytes], dict[str, Any]] | None = None
    subprotocols: tuple[str, ...] = ()
    # What becomes of text for a turn that has all its text and is still spoken.
    text_after_end: Literal["next turn", "complaint", "nothing"] = "complaint"


def _b64(field: str) -> Callable[[dict[str, Any]], bytes]:
    return lambda message: base64.b64decode(message.get(field) or "")


def _cartesia(context: str, text: str, **fields: Any) -> Messages:
    voice = {"mode": "id", "id": "zoe"}
    return [{"context_id": context, "transcript": text, "output_format": RAW, "voice": voice, **fields}]


VLLM_CONFIG = {
    "type": "session.config",
    "response_format": "pcm",
    "stream_audio": True,
    "split_granularity": "sentence",
}
PCM_CONFIG = {"audioEncoding": "PCM", "sampleRateHertz": 24_000}


def _key_beside(key: str, first: dict[str, Any]) -> Messages:
    return [first | {"xi_api_key": key}]


def _key_before(key: str, first: dict[str, Any]) -> Messages:
    return [{"config": {"authorization": f"Api-Key {key}"}}, first]


def _pack_kyutai(message: dict[str, Any]) -> bytes:
    return msgspec.msgpack.encode(message)


def _kyutai_audio(message: dict[str, Any]) -> bytes:
    return pcm_to_s16le(np.array(message.get("pcm", ()), np.float32))


def _status(message: dict[str, Any]) -> str | None:
    return message.get("response", {}).get("status")


def _result(message: dict[str, Any], turn: str) -> dict[str, Any]:
    result = message.get("result", {})
    return result if result.get("contextId") == turn else {}


# One has no last message: it closes.
CLIENTS = {
    client.name: client
    for client in (
        VendorClient(
            "elevenlabs multi",
            "/v1/text-to-speech/zoe/multi-stream-input?output_format=pcm_24000&auto_mode=true",
            say=lambda turn, text: [{"text": " ", "context_id": turn}, {"text": text, "context_id": turn}],
            end=lambda turn: [{"context_id": turn, "flush": True}, {"context_id": turn, "close_context": True}],
            cancel=lambda turn: [{"context_id": turn, "close_context": True}],
            is_end=lambda message, turn: message.get("isFinal") is True and message["contextId"] == turn,
            audio=_b64("audio"),
            is_error=lambda message: "error" in message,
            key_in_query="authorization",
            key_first=_key_beside,
        ),
        VendorClient(
            "elevenlabs single",
            "/v1/text-to-speech/zoe/stream-input?output_format=pcm_24000",
            say=lambda turn, text: [{"text": " "}, {"text": text}],
            end=lambda turn: [{"text": ""}],
            cancel=lambda turn: [],
            is_end=lambda message, turn: message.get("isFinal") is True,
            audio=_b64("audio"),
            is_error=lambda message: "error" in message,
            one_turn=True,
            text_after_end="nothing",
            key_in_query="single_use_token",
            key_first=_key_beside,
        ),
        VendorClient(
            "elevenlabs dialogue",
            "/v1/text-to-dialogue/multi-stream-input?output_format=pcm_24000&sync_alignment=true",
            say=lambda turn, text: [
                {"context_id": turn, "voices": ["zoe"]},
                {"context_id": turn, "inputs": [{"text": text, "voice_id": "zoe"}]},
            ],
            end=lambda turn: [{"context_id": turn, "flush": True}, {"context_id": turn, "close_context": True}],
            cancel=lambda turn: [{"context_id": turn, "close_context": True}],
            is_end=lambda message, turn: message.get("is_final") is True and message["context_id"] == turn,
            audio=_b64("audio"),
            is_error=lambda message: "error" in message,
            key_in_query="authorization",
            key_first=_key_beside,
        ),
        VendorClient(
            "elevenlabs single dialogue",
            "/v1/text-to-dialogue/stream-input?output_format=pcm_24000",
            say=lambda turn, text: [{"voices": ["zoe"]}, {"inputs": [{"text": text, "voice_id": "zoe"}]}],
            end=lambda turn: [{"flush": True}, {"close_socket": True}],
            cancel=lambda turn: [],
            is_end=lambda message, turn: message.get("is_final") is True,
            audio=_b64("audio"),
            is_error=lambda message: "error" in message,
            one_turn=True,
            text_after_end="nothing",
            key_in_query="single_use_token",
            key_first=_key_beside,
        ),
        VendorClient(
            "cartesia",
            "/tts/websocket?cartesia_version=2026-03-01",
            say=lambda turn, text: _cartesia(turn, text, **{"continue": True, "add_timestamps": True}),
            end=lambda turn: _cartesia(turn, "", **{"continue": False}),
            cancel=lambda turn: [{"context_id": turn, "cancel": True}],
            is_end=lambda message, turn: message["type"] == "done" and message["context_id"] == turn,
            audio=_b64("data"),
            cancel_is_silent=True,
            close_after_broken=None,
            key_in_query="access_token",
        ),
        VendorClient(
            "deepgram",
            "/v1/speak?model=aura-2-zoe-en&encoding=linear16&sample_rate=24000",
            say=lambda turn, text: [{"type": "Speak", "text": text}],
            end=lambda turn: [{"type": "Flush"}],
            cancel=lambda turn: [{"type": "Clear"}],
            is_end=lambda message, turn: message["type"] in ("Flushed", "Cleared"),
            text_after_end="next turn",
        ),
        VendorClient(
            "deepgram flux",
            "/v2/speak?model=flux-zoe-en&encoding=linear16&sample_rate=24000",
            say=lambda turn, text: [{"type": "Speak", "text": text}],
            end=lambda turn: [{"type": "Flush"}],
            cancel=lambda turn: [{"type": "Interrupt"}],
            is_end=lambda message, turn: message["type"] in ("SpeechMetadata", "SpeechInterrupted"),
            text_after_end="next turn",
        ),
        VendorClient(
            "openai realtime",
            "/v1/realtime?model=gpt-realtime",
            say=lambda turn, text: [{"type": "input_text_buffer.append", "delta": text}],
            end=lambda turn: [{"type": "input_text_buffer.commit"}],
            cancel=lambda turn: [{"type": "response.cancel"}],
            is_end=lambda message, turn: message["type"] == "response.done",
            audio=lambda message: _b64("delta")(message) if message["type"] == "response.output_audio.delta" else b"",
            is_error=lambda message: message["type"] == "error" or _status(message) == "failed",
            close_after_broken=None,
        ),
        VendorClient(
            "vllm-omni",
            "/v1/audio/speech/stream?",
            say=lambda turn, text: [VLLM_CONFIG, {"type": "input.text", "text": text}],
            end=lambda turn: [{"type": "input.done"}],
            cancel=lambda turn: [],
            is_end=lambda message, turn: message["type"] == "session.done",
            close_after_broken=None,
            text_after_end="next turn",
        ),
        VendorClient(
            "rime ws3",
            "/ws3?speaker=zoe&modelId=coda&audioFormat=pcm&samplingRate=24000",
            say=lambda turn, text: [{"text": text, "contextId": turn}],
            end=lambda turn: [{"operation": "flush"}],
            cancel=lambda turn: [{"operation": "clear"}],
            is_end=lambda message, turn: message["type"] == "done" and message["contextId"] == turn,
            audio=_b64("data"),
            close_after_broken=None,
            text_after_end="next turn",
        ),
        VendorClient(
            "inworld",
            "/tts/v1/voice:streamBidirectional?",
            say=lambda turn, text: [
                {"create": {"audioConfig": PCM_CONFIG, "timestampType": "WORD"}, "contextId": turn},
                {"send_text": {"text": text}, "contextId": turn},
            ],
            end=lambda turn: [{"flush_context": {}, "contextId": turn}, {"close_context": {}, "contextId": turn}],
            cancel=lambda turn: [{"cancel_context": {}, "contextId": turn}],
            is_end=lambda message, turn: "contextClosed" in _result(message, turn),
            audio=lambda message: _b64("audioContent")(message.get("result", {}).get("audioChunk", {})),
            is_error=lambda message: "error" in message or message["result"]["status"]["code"] != 0,
            close_after_broken=None,
        ),
        VendorClient(
            "rime v1",
            "/ws?",
            say=lambda turn, text: [
                {"context_id": turn, "start": {"audio_parameters": _RIME_AUDIO, "timestamps": {"enable": True}}},
                {"context_id": turn, "text": text},
            ],
            end=lambda turn: [{"context_id": turn, "end": {}}],
            cancel=lambda turn: [{"context_id": turn, "cancel": {}}],
            is_end=lambda message, turn: "done" in message or "cancelled" in message,
            audio=lambda message: message.get("audio", b""),
            is_error=lambda message: "error" in message,
            broken=("text", b"\xff"),
            close_after_broken=1007,
            key_first=_key_before,
            pack=lambda message: encode(message, REQUEST),
            unpack=lambda data: decode(data, RESPONSE),
            subprotocols=(BINARY,),
        ),
        VendorClient(
            "rime v1 json",
            "/ws?",
            say=lambda turn, text: [
                {"contextId": turn, "start": {"audioParameters": {"audioFormat": "audio/pcm", "samplingRate": 24_000}}},
                {"contextId": turn, "text": text},
            ],
            end=lambda turn: [{"contextId": turn, "end": {}}],
            cancel=lambda turn: [{"contextId": turn, "cancel": {}}],
            is_end=lambda message, turn: "done" in message or "cancelled" in message,
            audio=_b64("audio"),
            is_error=lambda message: "error" in message,
            close_after_broken=1007,
            key_first=_key_before,
            subprotocols=(JSON,),
        ),
        VendorClient(
            "kyutai",
            "/api/tts_streaming?format=PcmMessagePack",
            say=lambda turn, text: [{"type": "Text", "text": text}],
            end=lambda turn: [{"type": "Eos"}],
            cancel=lambda turn: [],
            is_end=lambda message, turn: False,
            audio=_kyutai_audio,
            is_error=lambda message: message.get("type") == "Error",
            one_turn=True,
            broken=(b"\xff\xff", b"\x80"),
            close_after_broken=1007,
            key_in_query="auth_id",
            pack=_pack_kyutai,
            unpack=msgspec.msgpack.decode,
            text_after_end="nothing",
        ),
    )
}


def read(client: VendorClient, message: str | bytes) -> tuple[bytes, dict[str, Any]]:
    """The audio in a message, and the message if it is one."""
    if isinstance(message, str):
        told = json.loads(message)
    elif client.unpack is None:
        return message, {}
    else:
        told = client.unpack(message)
    return client.audio(told), told


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
