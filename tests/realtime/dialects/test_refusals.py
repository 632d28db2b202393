"""What a dialect refuses: the error names the cause."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

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
