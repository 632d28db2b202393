"""The simulated Twilio of our tests and pipecat's own serializer understand each other, both ways."""

from __future__ import annotations

import base64
import json
import subprocess

import pytest

from realtime.protocol.phones.twilio import Twilio
from sessions.audio.g711 import pcm_to_mulaw
from sessions.audio.pcm import s16_to_float
from tests.realtime.calls import far_side
from tests.sdk.runs import ENVIRONMENTS, PROGRAMS, RUN_TIMEOUT_S

pytestmark = [pytest.mark.sdk, pytest.mark.timeout(180)]


def serialized(messages: list[str]) -> dict[str, list[object]]:
    python = ENVIRONMENTS / "pipecat" / "bin" / "python"
    if not python.exists():
        pytest.skip("no environment pipecat: tests/sdk/run makes it")
    asked = json.dumps({"stream_sid": far_side.STREAM, "messages": messages})
    command = [python, PROGRAMS / "pipecat_twilio.py"]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=True)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_the_simulator_speaks_twilios_language() -> None:
    loud = base64.b64encode(b"\x80" * 160).decode()
    messages = [far_side.connected(), far_side.start(), far_side.media(loud), far_side.dtmf("5"), far_side.stop()]
    told = serialized(messages)
    audio, digit = told["read"][2], told["read"][3]
    assert audio == {"audio": 160, "rate": 8_000, "peak": 32_124}
    assert digit == {"digit": "5"}
    assert told["read"][0] is told["read"][1] is told["read"][4] is None


def test_we_say_what_pipecat_says() -> None:
    import numpy as np

    media, clear = (json.loads(message) for message in serialized([])["said"])
    line = Twilio()
    line.receive(far_side.start())
    tone = pcm_to_mulaw(s16_to_float(np.array([3_000, -3_000] * 80, np.int16)))
    assert json.loads(line.clear()) == clear
    ours = json.loads(line.audio(tone))
    assert ours.keys() == media.keys()
    assert (ours["event"], ours["streamSid"]) == (media["event"], media["streamSid"])
    theirs = base64.b64decode(media["media"]["payload"])
    assert len(theirs) == len(tone)
    assert max(abs(one - other) for one, other in zip(theirs, tone, strict=True)) <= 1
