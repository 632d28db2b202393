"""Synthesize speech through an MQTT broker with ``aiomqtt`` only: text deltas in, PCM out.

    pip install aiomqtt
    python mqtt_agent.py broker.example.com hello.wav

A voicewire server must be connected to the broker (docs/guides/mqtt.md). MQTT_USERNAME and MQTT_PASSWORD hold the
credentials, if the broker needs them. Audio is PCM here; devices use Opus.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
import wave

import aiomqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

CLIENT = f"agent-{secrets.token_hex(4)}"
SID = "greeting"
REPLIES, SESSION = f"voice/v1/c/{CLIENT}/rsp", f"voice/v1/s/{CLIENT}/{SID}"
WORDS = "This arrives word by word, as a language model writes it.".split()
FORMAT = {"encoding": "pcm_s16le", "sample_rate": 24_000}


async def main() -> None:
    host, _, port = sys.argv[1].partition(":")
    will = aiomqtt.Will(f"voice/v1/c/{CLIENT}/gone", qos=1)
    async with aiomqtt.Client(
        host,
        int(port or 1_883),
        identifier=CLIENT,
        protocol=aiomqtt.ProtocolVersion.V5,
        username=os.environ.get("MQTT_USERNAME"),
        password=os.environ.get("MQTT_PASSWORD"),
        will=will,
    ) as broker:
        await broker.subscribe([(REPLIES, 1), (f"{SESSION}/ev", 1), (f"{SESSION}/audio", 0)])
        request = json.dumps({"sid": SID, "format": FORMAT})
        await broker.publish("voice/v1/open", request, 1, properties=response_properties())
        pcm = await receive_audio(broker)
        await broker.publish(will.topic, qos=1)
    with wave.open(sys.argv[2], "wb") as file:
        file.setparams((1, 2, 24_000, 0, "NONE", ""))
        file.writeframes(pcm)


def response_properties() -> Properties:
    properties = Properties(PacketTypes.PUBLISH)
    properties.ResponseTopic = REPLIES
    properties.CorrelationData = secrets.token_bytes(4)
    properties.MessageExpiryInterval = 5
    return properties


async def receive_audio(broker: aiomqtt.Client) -> bytes:
    pcm = b""
    async with asyncio.timeout(60):
        async for message in broker.messages:
            if message.topic.matches(f"{SESSION}/audio"):
                pcm += bytes(message.payload)
                continue
            event = json.loads(message.payload)
            if event.get("error"):
                raise SystemExit(event["error"]["message"])
            if message.topic.matches(REPLIES):
                await write(broker, event["in"])
            elif event["t"] == "done":
                print(f"{event['audio_ms'] / 1_000:.1f} s: {event['heard']}")
                return pcm
    raise SystemExit("the broker disconnected")


async def write(broker: aiomqtt.Client, inbox: str) -> None:
    messages = [{"t": "text", "d": f"{word} "} for word in WORDS] + [{"t": "end"}]
    for number, message in enumerate(messages):
        await broker.publish(inbox, json.dumps({**message, "seq": number}), 1)


if __name__ == "__main__":
    asyncio.run(main())
