"""What our tests take for a provider's messages is what pipecat's own serializers read, and we say what they say."""

from __future__ import annotations

import base64
import json
import subprocess
from typing import Any, NamedTuple

import numpy as np
import pytest

from realtime.protocol.model import Message
from realtime.protocol.telephony.base import TelephonyDialect
from realtime.protocol.telephony.plivo import PlivoDialect
from realtime.protocol.telephony.telnyx import TelnyxDialect
from realtime.protocol.telephony.twilio import TwilioDialect
from realtime.protocol.telephony.vonage import VonageDialect
from sessions.audio.g711 import alaw_to_pcm, mulaw_to_pcm, pcm_to_alaw, pcm_to_mulaw
from sessions.audio.pcm import pcm_to_s16le, s16_to_float, s16le_to_pcm
from tests.realtime.calls import twilio_simulator
from tests.realtime.protocol.telephony.lines import message_of
from tests.sdk.client_matrix import PROGRAMS, RUN_TIMEOUT_S, existing_environment

pytestmark = [pytest.mark.sdk, pytest.mark.timeout(180)]

PAYLOAD = base64.b64encode(b"\xff\x7f").decode()
LOUD = base64.b64encode(b"\x80" * 160).decode()
LOUDEST_MULAW, LOUDEST_ALAW = 32_124, 5_504
CODECS = {
    "PCMU": (pcm_to_mulaw, mulaw_to_pcm),
    "PCMA": (pcm_to_alaw, alaw_to_pcm),
    "L16": (pcm_to_s16le, s16le_to_pcm),
}
# Encoders differ in rounding, by one code at most; at the loudness of the tone that is so much.
STEP = 0.005


class Provider(NamedTuple):
    name: str
    dialect: TelephonyDialect
    start: Message
    media: Message
    digit: Message
    peak: int
    encoding: str = "PCMU"
    rate: int = 8_000


def said(name: str) -> list[Message]:
    """The start, the media made loud, and a digit, as in the recorded exchanges."""
    found = [message_of(name, event) for event in ("StreamStarted", "CallerAudioReceived", "DtmfReceived")]
    return [message.replace(PAYLOAD, LOUD) if isinstance(message, str) else message for message in found]


PROVIDERS = (
    Provider(
        "twilio",
        TwilioDialect(),
        twilio_simulator.start(),
        twilio_simulator.media(LOUD),
        twilio_simulator.dtmf("5"),
        LOUDEST_MULAW,
    ),
    Provider("telnyx", TelnyxDialect(), *said("telnyx"), LOUDEST_ALAW, "PCMA"),
    Provider("plivo", PlivoDialect(), *said("plivo"), LOUDEST_MULAW),
    Provider("vonage", VonageDialect("c"), *said("vonage"), 1, "L16", 16_000),
)


def heard_by_pipecat(provider: Provider) -> dict[str, list[Any]]:
    python = existing_environment("pipecat") / "bin" / "python"
    messages = [packed(message) for message in (provider.start, provider.media, provider.digit)]
    asked = {"provider": provider.name, "encoding": provider.encoding, "rate": provider.rate, "messages": messages}
    command = [python, PROGRAMS / "pipecat_phones.py"]
    done = subprocess.run(
        command,
        input=json.dumps(asked | {"stream": stream_of(provider.name)}),
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=True,
    )
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def stream_of(provider: str) -> str:
    return {"twilio": twilio_simulator.STREAM}.get(provider, "S1")


def packed(message: Message) -> object:
    return {"bytes": base64.b64encode(message).decode()} if isinstance(message, bytes) else message


@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.name)
def test_pipecat_and_we_speak_one_language(provider: Provider) -> None:
    told = heard_by_pipecat(provider)
    _, audio, digit = told["read"]
    assert audio == {"audio": 160 if provider.rate == 8_000 else 320, "rate": provider.rate, "peak": provider.peak}
    assert digit is not None
    line = provider.dialect
    start = provider.start
    if provider.name == "plivo":  # pipecat takes only mu-law from it
        start = str(start).replace("x-l16", "x-mulaw").replace("16000", "8000")
    line.receive_message(start)
    [heard] = line.receive_message(provider.digit)
    assert heard.digit == digit["digit"]  # type: ignore[union-attr]
    encode, decode = CODECS[provider.encoding]
    tone = s16_to_float(np.array([3_000, -3_000] * (provider.rate // 100), np.int16))
    media, clear = told["said"]
    assert json.loads(str(line.send_clear())) == json.loads(clear)
    ours, theirs = (payload(message) for message in (line.send_audio(encode(tone)), media))
    assert ours.envelope == theirs.envelope
    np.testing.assert_allclose(decode(ours.audio), decode(theirs.audio), atol=STEP)


class Payload(NamedTuple):
    envelope: Any
    audio: bytes


def payload(message: Any) -> Payload:
    """Of a message of audio: what is around it, and the audio."""
    if isinstance(message, bytes):
        return Payload(None, message)
    if isinstance(message, dict):
        return Payload(None, base64.b64decode(message["bytes"]))
    told = json.loads(message)
    return Payload(told, base64.b64decode(told["media"].pop("payload"), validate=True))
