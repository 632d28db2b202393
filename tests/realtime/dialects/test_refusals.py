"""What a dialect refuses: the error names the cause."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from realtime.protocol.dialects import base
from realtime.protocol.dialects.deepgram import Speak
from realtime.protocol.dialects.deepgram_flux import Flux
from realtime.protocol.dialects.elevenlabs import MultiStream
from realtime.protocol.dialects.elevenlabs_dialogue import Dialogue
from realtime.protocol.dialects.inworld import Inworld, InworldStream
from realtime.protocol.dialects.kyutai import Kyutai, KyutaiOnce
from realtime.protocol.dialects.openai_realtime import OpenAIRealtime
from realtime.protocol.dialects.rime import RimeWs3
from realtime.protocol.dialects.rime_envelope import BINARY, JSON
from realtime.protocol.dialects.rime_v1 import RimeV1
from realtime.protocol.dialects.vllm_omni import VllmOmni
from realtime.protocol.errors import RemoteProtocolError
from tests.realtime.dialects.play import Play, failed, handshake

START = {"start": {}, "contextId": "c"}
BUFFER = {"type": "input_text_buffer.append", "delta": "Hello"}
COMMIT = {"type": "input_text_buffer.commit"}


@pytest.mark.parametrize(
    ("dialect", "query", "reason"),
    [
        (Speak, {"encoding": "mp3"}, "bit_rate|encoding"),
        (Speak, {"sample_rate": "fast"}, "sample_rate"),
        (Speak, {"speed": "nan"}, "speed"),
        (Speak, {"speed": "0"}, "speed"),
        (Speak, {"speed": "x"}, "speed"),
        (Flux, {}, "model is missing"),
        (MultiStream, {"output_format": "pcm"}, "output_format"),
        (MultiStream, {"output_format": "flac_24000"}, "output_format"),
        (MultiStream, {"output_format": "pcm_24000_32_1"}, "output_format"),
        (MultiStream, {"seed": "-1"}, "seed"),
        (MultiStream, {"seed": str(2**32)}, "seed"),
        (MultiStream, {"inactivity_timeout": "soon"}, "inactivity_timeout"),
        (Dialogue, {"output_format": "wav_24000"}, "WAV"),
        (Kyutai, {"format": "Mp3"}, "format"),
        (Kyutai, {"seed": "x"}, "seed"),
        (RimeWs3, {"audioFormat": "tape"}, "audioFormat"),
        (RimeWs3, {"samplingRate": "fast"}, "samplingRate"),
        (RimeV1, {}, "sub-protocol"),
    ],
)
def test_query_is_refused_with_its_cause(dialect: type[base.Dialect], query: dict[str, str], reason: str) -> None:
    with pytest.raises(RemoteProtocolError, match=reason):
        dialect(handshake({"voice_id": "zoe"}, **query))


@pytest.mark.parametrize(
    ("dialect", "before", "refused", "reason"),
    [
        (MultiStream, [], {"text": " ", "context_id": "x" * 300}, "context_id has 300 characters, at most 256"),
        (InworldStream, [], {"text": ""}, "empty"),
        (KyutaiOnce, [], {"text": " "}, "empty"),
        (VllmOmni, [{"type": "input.text", "text": "x"}], {"type": "session.config"}, "within"),
        (OpenAIRealtime, [], {"type": "conversation.item.retrieve", "item_id": "mine"}, "unknown"),
        (OpenAIRealtime, [BUFFER, COMMIT], BUFFER, "whole"),
        (OpenAIRealtime, [], COMMIT, "no text"),
        (RimeV1, [], {}, "holds"),
        (RimeV1, [START], START, "open"),
        (RimeV1, [{"config": {}}, START], {"config": {}}, "after"),
    ],
)
def test_message_is_refused_with_its_cause(
    dialect: type[base.Dialect], before: list[dict[str, Any]], refused: dict[str, Any], reason: str
) -> None:
    play = Play(dialect(replace(handshake({"voice_id": "zoe"}), subprotocols=(JSON,))))
    for message in before:
        play.say(**message)
    with pytest.raises(RemoteProtocolError, match=reason):
        play.say(**refused)


def test_second_key_is_refused() -> None:
    head = replace(handshake(), subprotocols=(BINARY,), headers={"authorization": "Bearer k"})
    config = bytes.fromhex("120b0a094170692d4b6579206b")
    with pytest.raises(RemoteProtocolError, match="already"):
        Play(RimeV1(head)).say(config)


def test_refused_handshake_has_a_status() -> None:
    error = failed("c", "internal_error").error
    assert error is not None
    assert Inworld.refuse(error, 500)[0]["code"] == 13
