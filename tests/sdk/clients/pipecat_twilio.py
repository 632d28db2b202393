"""pipecat's serializer of Twilio's messages: reads those on standard input, and prints what it makes of them and what
it would itself send for a tone and for an interruption. Runs in an environment of its own that has pipecat."""

from __future__ import annotations

import asyncio
import json
import sys
from array import array
from typing import Any

from loguru import logger
from pipecat.frames.frames import InputAudioRawFrame, InputDTMFFrame, InterruptionFrame, OutputAudioRawFrame
from pipecat.serializers.twilio import TwilioFrameSerializer

RATE = 8_000


async def main() -> dict[str, Any]:
    told = json.load(sys.stdin)
    params = TwilioFrameSerializer.InputParams(auto_hang_up=False, sample_rate=RATE)
    serializer = TwilioFrameSerializer(told["stream_sid"], params=params)
    await set_up(serializer)
    read = [shown(await serializer.deserialize(message)) for message in told["messages"]]
    tone = array("h", [3_000, -3_000] * 80).tobytes()
    frames = (OutputAudioRawFrame(audio=tone, sample_rate=RATE, num_channels=1), InterruptionFrame())
    return {"read": read, "said": [await serializer.serialize(frame) for frame in frames]}


async def set_up(serializer: TwilioFrameSerializer) -> None:
    """As far as a sample rate goes: there is no pipeline here."""
    serializer._sample_rate = RATE


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
