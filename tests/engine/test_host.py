from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any, cast

import pytest

from engine.api import EngineInfo, SpeechRequest
from engine.commands import Cancel, Command, EndInput, PushText, Released, Submit
from engine.config import EngineConfig
from engine.host import MAX_UNSENT_BYTES, Gateway, Host

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
