"""pipecat's serializer of a provider's messages: reads those on standard input, and prints what it makes of them and
what it would itself send for a tone and for an interruption. Runs in an environment of its own that has pipecat."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from array import array
from typing import Any

from loguru import logger
from pipecat.frames.frames import InputAudioRawFrame, InputDTMFFrame, InterruptionFrame, OutputAudioRawFrame
from pipecat.serializers.base_serializer import FrameSerializer
from pipecat.serializers.plivo import PlivoFrameSerializer
from pipecat.serializers.telnyx import TelnyxFrameSerializer
from pipecat.serializers.twilio import TwilioFrameSerializer
from pipecat.serializers.vonage import VonageFrameSerializer


def serializer_of(provider: str, stream: str, encoding: str, rate: int) -> FrameSerializer:
    match provider:
        case "twilio":
            params = TwilioFrameSerializer.InputParams(auto_hang_up=False, sample_rate=rate)
            return TwilioFrameSerializer(stream, params=params)
        case "telnyx":
            telnyx = TelnyxFrameSerializer.InputParams(
                auto_hang_up=False, sample_rate=rate, inbound_encoding=encoding, outbound_encoding=encoding
            )
            return TelnyxFrameSerializer(stream, encoding, encoding, params=telnyx)
        case "plivo":
            plivo = PlivoFrameSerializer.InputParams(auto_hang_up=False, sample_rate=rate)
            return PlivoFrameSerializer(stream, params=plivo)
        case "vonage":
            vonage = VonageFrameSerializer.InputParams(sample_rate=rate, vonage_sample_rate=rate)
            return VonageFrameSerializer(vonage)
    raise ValueError(provider)


async def main() -> dict[str, Any]:
    told = json.load(sys.stdin)
    rate = told["rate"]
    serializer = serializer_of(told["provider"], told["stream"], told["encoding"], rate)
    serializer._sample_rate = rate  # type: ignore[attr-defined] # there is no pipeline here that sets it up
    read = [shown(await serializer.deserialize(message)) for message in map(unpacked, told["messages"])]
    tone = array("h", [3_000, -3_000] * (rate // 100)).tobytes()
    frames = (OutputAudioRawFrame(audio=tone, sample_rate=rate, num_channels=1), InterruptionFrame())
    return {"read": read, "said": [packed(await serializer.serialize(frame)) for frame in frames]}


def unpacked(message: str | dict[str, str]) -> str | bytes:
    return message if isinstance(message, str) else base64.b64decode(message["bytes"])


def packed(message: str | bytes | None) -> str | dict[str, str] | None:
    return {"bytes": base64.b64encode(message).decode()} if isinstance(message, bytes) else message


def shown(frame: object) -> dict[str, Any] | None:
    match frame:
        case InputAudioRawFrame():
            samples = array("h", frame.audio)
            return {"audio": len(samples), "rate": frame.sample_rate, "peak": max(map(abs, samples), default=0)}
        case InputDTMFFrame():
            return {"digit": frame.button.value}
    return None


if __name__ == "__main__":
    logger.remove()
    print(json.dumps(asyncio.run(main())))
