"""The golden vectors that every implementation of the wire agrees on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from realtime.errors import RemoteProtocolError
from realtime.protocol import native
from realtime.protocol.events import AudioKind, AudioMessage, ClientEvent, ServerEvent

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
