from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from engine.api import ClonedVoice, EngineInfo, InvalidRequest, SpeechRequest, VoiceSample
from engine.commands import (
    Cancel,
    Command,
    DismissSample,
    EncodeVoice,
    EndInput,
    PushText,
    Released,
    Submit,
)
from engine.config import EngineConfig
from engine.host import MAX_UNSENT_BYTES, Gateway, Host, failed_encoding

INFO = EngineInfo("fake", 24000, 1920, (), (), 100, False)


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    ours, theirs = socket.socketpair()
    gateway = Gateway(1, ours)
    yield gateway
    gateway.finish()
    ours.close()
    theirs.close()


def test_only_what_is_submitted_counts_as_active(gateway: Gateway) -> None:
    host = Host(cast(Any, None), INFO, EngineConfig())
    host.gateways[1] = gateway
    sent: list[Command] = []
    host.loop.send = sent.append  # type: ignore[method-assign]
    host._obey(gateway, Submit(7, SpeechRequest(request_id="r")))
    assert gateway.active == {7}
    submitted = sent[0]
    assert isinstance(submitted, Submit)
    host.deliver([(submitted.epoch, Released("r"))])
    for late in (Cancel(7), EndInput(7), PushText(7, "x")):
        host._obey(gateway, late)
    assert gateway.active == set()


def test_a_gateway_that_does_not_read_is_cut_off(gateway: Gateway) -> None:
    for _ in range(70):
        gateway.send(bytes(MAX_UNSENT_BYTES // 64))
    with pytest.raises(BrokenPipeError):
        gateway.connection.send(b"x")


def test_a_recording_that_nobody_waits_for_leaves_the_line(gateway: Gateway) -> None:
    gate, heard = threading.Event(), list[str]()

    def encode_voice(sample: VoiceSample) -> ClonedVoice:
        gate.wait()
        heard.append(sample.transcript)
        return ClonedVoice(embedding=b"")

    host = Host(cast(Any, None), INFO, EngineConfig(), encode_voice)
    for number in range(3):
        host._obey(gateway, EncodeVoice(number, VoiceSample(pcm=b"", transcript=str(number))))
    host._obey(gateway, DismissSample(1))
    host._obey(gateway, DismissSample(99))
    assert set(gateway.encodings) == {0, 2}
    gate.set()
    assert host.encoding is not None
    host.encoding._executor.shutdown(wait=True)
    assert heard == ["0", "2"]
    assert gateway.encodings == {}


def test_a_refused_recording_is_told_with_its_field() -> None:
    answer = failed_encoding(3, InvalidRequest("audio is odd", "audio"))
    assert (answer.number, answer.code, answer.param) == (3, "invalid_request", "audio")
