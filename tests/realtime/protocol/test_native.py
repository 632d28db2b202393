"""The native wire: round trips, vectors that every implementation agrees on, and random bytes."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime.errors import RULES, LocalProtocolError, RemoteProtocolError
from realtime.protocol import native
from realtime.protocol.events import AudioKind, AudioMessage, ClientEvent, PlaybackReport, ServerEvent, TextAppend
from tests.realtime.message_fuzzer import random_message
from tests.realtime.strategies import AUDIO_MESSAGES, CLIENT_EVENTS, SERVER_EVENTS


@given(CLIENT_EVENTS)
def test_client_events_come_back_as_they_went(event: ClientEvent) -> None:
    assert native.parse_client(native.serialize(event)) == event


@given(SERVER_EVENTS)
def test_server_events_come_back_as_they_went(event: ServerEvent) -> None:
    assert native.parse_server(native.serialize(event)) == event


@given(AUDIO_MESSAGES)
def test_audio_comes_back_as_it_went(message: AudioMessage) -> None:
    assert native.parse_audio(native.serialize_audio(message)) == message


@given(CLIENT_EVENTS)
def test_every_truncated_event_is_refused(event: ClientEvent) -> None:
    text = native.serialize(event)
    for end in range(len(text)):
        with pytest.raises(RemoteProtocolError) as refusal:
            native.parse_client(text[:end])
        assert refusal.value.code == "malformed_json"


@given(AUDIO_MESSAGES, st.binary(min_size=1, max_size=4))
def test_every_truncated_or_longer_audio_message_is_refused(message: AudioMessage, more: bytes) -> None:
    data = native.serialize_audio(message)
    for wrong in [*(data[:end] for end in range(len(data))), data + more]:
        with pytest.raises(RemoteProtocolError) as refusal:
            native.parse_audio(wrong)
        assert refusal.value.code == "malformed_audio"


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(RemoteProtocolError) as refusal:
        native.parse_client('{"x":' + "[" * 100_000 + "]" * 100_000 + ',"type":"session.close"}')
    assert refusal.value.code == "malformed_json"


def test_older_clients_ignore_unknown_fields() -> None:
    event = native.parse_server('{"type":"text.flushed","response_id":"a","flush":0,"end_sample":4,"new":true}')
    assert native.parse_server(native.serialize(event)) == event


def test_defaults_stay_off_the_wire() -> None:
    assert (
        native.serialize(TextAppend(response_id="a", text="b")) == '{"type":"text.append","response_id":"a","text":"b"}'
    )
    assert native.parse_client('{"type":"playback.report","response_id":"a","played_ms":5}') == PlaybackReport(
        response_id="a", played_ms=5.0
    )


@pytest.mark.parametrize(
    "message",
    [
        AudioMessage(AudioKind.OPUS, 1, 0, 0, ()),
        AudioMessage(AudioKind.OPUS, 2**32, 0, 0, (b"a",)),
        AudioMessage(AudioKind.OPUS, 1, 0, -1, (b"a",)),
        AudioMessage(AudioKind.OPUS, 1, 0, 0, (bytes(native.MAX_PACKET_BYTES + 1),)),
        AudioMessage(AudioKind.OPUS, 1, 0, 0, (b"",) * (native.MAX_PACKETS + 1)),
    ],
)
def test_audio_that_does_not_fit_its_header_is_our_fault(message: AudioMessage) -> None:
    with pytest.raises(LocalProtocolError):
        native.serialize_audio(message)


VECTORS = Path(__file__).parents[2] / "vectors" / "wire"


def load(name: str) -> Any:
    return json.loads((VECTORS / name).read_text())


def named(vectors: list[dict[str, Any]]) -> Any:
    return pytest.mark.parametrize("vector", [pytest.param(vector, id=vector["name"]) for vector in vectors])


@named(load("client_events.json"))
def test_client_event(vector: dict[str, Any]) -> None:
    event = native.parse_client(vector["wire"])
    assert json.loads(native.serialize(event)) == vector["event"]
    assert native.serialize(event) == vector["wire"]


@named(load("server_events.json"))
def test_server_event(vector: dict[str, Any]) -> None:
    event = native.parse_server(vector["wire"])
    assert json.loads(native.serialize(event)) == vector["event"]
    assert native.serialize(event) == vector["wire"]


@named(load("audio.json"))
def test_audio(vector: dict[str, Any]) -> None:
    fields = dict(vector["message"])
    packets = tuple(bytes.fromhex(packet) for packet in fields.pop("packets_hex"))
    message = AudioMessage(AudioKind(fields.pop("kind")), **fields, packets=packets)
    wire = bytes.fromhex(vector["wire_hex"])
    assert native.parse_audio(wire) == message
    assert native.serialize_audio(message) == wire


@named(load("refused.json")["client_events"])
def test_refused_client_event(vector: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError) as refusal:
        native.parse_client(vector["wire"])
    assert (refusal.value.code, refusal.value.param) == (vector["code"], vector["param"])


@named(load("refused.json")["audio"])
def test_refused_audio(vector: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError) as refusal:
        native.parse_audio(bytes.fromhex(vector["wire_hex"]))
    assert (refusal.value.code, refusal.value.param) == (vector["code"], vector["param"])


def test_every_event_has_a_vector() -> None:
    for union, name in ((ClientEvent, "client_events.json"), (ServerEvent, "server_events.json")):
        tags = {kind.__struct_config__.tag for kind in get_args(union)}
        assert {vector["event"]["type"] for vector in load(name)} == tags


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
