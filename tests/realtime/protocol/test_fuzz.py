"""Any bytes: an event, or one documented error."""

from __future__ import annotations

import random

import pytest

from realtime.errors import RULES, RemoteProtocolError
from realtime.protocol import native
from tests.realtime.message_fuzzer import random_message


def check(seed: int, num_messages: int) -> None:
    rng = random.Random(seed)
    num_events = 0
    for _ in range(num_messages):
        message = random_message(rng)
        try:
            event = native.parse_client(message)
        except RemoteProtocolError as error:
            assert error.code in RULES  # noqa: PT017
        else:
            num_events += 1
            assert native.parse_client(native.serialize(event)) == event
        if isinstance(message, bytes):
            check_audio(message)
    assert 0.05 < num_events / num_messages < 0.95


def check_audio(data: bytes) -> None:
    try:
        message = native.parse_audio(data)
    except RemoteProtocolError as error:
        assert error.code == "malformed_audio"  # noqa: PT017
    else:
        assert native.serialize_audio(message) == data


def test_some_generated_messages() -> None:
    check(seed=1, num_messages=5_000)


@pytest.mark.slow
def test_200_000_generated_messages() -> None:
    check(seed=2, num_messages=200_000)
