"""Options and keys that a dialect refuses: the error names the cause."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from realtime.errors import RemoteProtocolError
from realtime.protocol.dialects.base import Dialect
from realtime.protocol.dialects.deepgram import DeepgramDialect
from realtime.protocol.dialects.deepgram_flux import DeepgramFluxDialect
from realtime.protocol.dialects.elevenlabs import ElevenLabsMultiStream
from realtime.protocol.dialects.elevenlabs_dialogue import ElevenLabsDialogue
from realtime.protocol.dialects.inworld import InworldDialect, InworldStream
from realtime.protocol.dialects.kyutai import KyutaiDialect, KyutaiHttp
from realtime.protocol.dialects.openai_realtime import OpenAIRealtimeDialect
from realtime.protocol.dialects.rime import RimeWs3Dialect
from realtime.protocol.dialects.rime_envelope import BINARY, JSON
from realtime.protocol.dialects.rime_v1 import RimeV1Dialect
from realtime.protocol.dialects.vllm_omni import VllmOmniDialect
from tests.realtime.dialects.dialect_harness import DialectHarness, failed, handshake
from tests.realtime.dialects.socket_client import (
    KEY,
    TEXT,
    dial,
    every,
    hear,
    hear_to_the_close,
    send,
)
from tests.realtime.dialects.vendor_clients import VendorClient
from tests.realtime.live_server import LiveServer

START = {"start": {}, "contextId": "c"}
BUFFER = {"type": "input_text_buffer.append", "delta": "Hello"}
COMMIT = {"type": "input_text_buffer.commit"}


@pytest.mark.parametrize(
    ("dialect", "query", "reason"),
    [
        (DeepgramDialect, {"encoding": "mp3"}, "bit_rate|encoding"),
        (DeepgramDialect, {"sample_rate": "fast"}, "sample_rate"),
        (DeepgramDialect, {"speed": "nan"}, "speed"),
        (DeepgramDialect, {"speed": "0"}, "speed"),
        (DeepgramDialect, {"speed": "x"}, "speed"),
        (DeepgramFluxDialect, {}, "model is missing"),
        (ElevenLabsMultiStream, {"output_format": "pcm"}, "output_format"),
        (ElevenLabsMultiStream, {"output_format": "flac_24000"}, "output_format"),
        (ElevenLabsMultiStream, {"output_format": "pcm_24000_32_1"}, "output_format"),
        (ElevenLabsMultiStream, {"seed": "-1"}, "seed"),
        (ElevenLabsMultiStream, {"seed": str(2**32)}, "seed"),
        (ElevenLabsMultiStream, {"inactivity_timeout": "soon"}, "inactivity_timeout"),
        (ElevenLabsDialogue, {"output_format": "wav_24000"}, "WAV"),
        (KyutaiDialect, {"format": "Mp3"}, "format"),
        (KyutaiDialect, {"seed": "x"}, "seed"),
        (RimeWs3Dialect, {"audioFormat": "tape"}, "audioFormat"),
        (RimeWs3Dialect, {"samplingRate": "fast"}, "samplingRate"),
        (RimeV1Dialect, {}, "sub-protocol"),
    ],
)
def test_query_is_refused_with_its_cause(dialect: type[Dialect], query: dict[str, str], reason: str) -> None:
    with pytest.raises(RemoteProtocolError, match=reason):
        dialect(handshake({"voice_id": "zoe"}, **query))


@pytest.mark.parametrize(
    ("dialect", "before", "refused", "reason"),
    [
        (
            ElevenLabsMultiStream,
            [],
            {"text": " ", "context_id": "x" * 300},
            "context_id has 300 characters, at most 256",
        ),
        (InworldStream, [], {"text": ""}, "empty"),
        (KyutaiHttp, [], {"text": " "}, "empty"),
        (VllmOmniDialect, [{"type": "input.text", "text": "x"}], {"type": "session.config"}, "within"),
        (OpenAIRealtimeDialect, [], {"type": "conversation.item.retrieve", "item_id": "mine"}, "unknown"),
        (OpenAIRealtimeDialect, [BUFFER, COMMIT], BUFFER, "whole"),
        (OpenAIRealtimeDialect, [], COMMIT, "no text"),
        (RimeV1Dialect, [], {}, "holds"),
        (RimeV1Dialect, [START], START, "open"),
        (RimeV1Dialect, [{"config": {}}, START], {"config": {}}, "after"),
    ],
)
def test_message_is_refused_with_its_cause(
    dialect: type[Dialect], before: list[dict[str, Any]], refused: dict[str, Any], reason: str
) -> None:
    play = DialectHarness(dialect(replace(handshake({"voice_id": "zoe"}), subprotocols=(JSON,))))
    for message in before:
        play.say(**message)
    with pytest.raises(RemoteProtocolError, match=reason):
        play.say(**refused)


def test_second_key_is_refused() -> None:
    head = replace(handshake(), subprotocols=(BINARY,), headers={"authorization": "Bearer k"})
    config = bytes.fromhex("120b0a094170692d4b6579206b")
    with pytest.raises(RemoteProtocolError, match="already"):
        DialectHarness(RimeV1Dialect(head)).say(config)


def test_refused_handshake_has_a_status() -> None:
    error = failed("c", "internal_error").error
    assert error is not None
    assert InworldDialect.reject_handshake(error, 500)[0]["code"] == 13


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
