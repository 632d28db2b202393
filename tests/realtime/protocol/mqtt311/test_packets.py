"""Packets of MQTT 3.1.1: as paho-mqtt writes them, cut anywhere, bent anywhere."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime.errors import RemoteProtocolError
from realtime.protocol import mqtt311 as mqtt

NUM_STREAMS, NUM_STREAMS_SLOW = 2_000, 50_000
MAX_BYTES = 4_096
CONNECT = bytes.fromhex("101f0004 4d515454 04c2 003c 0006 646576696365 0004 75736572 0005 7061737377".replace(" ", ""))
SUBSCRIBE = bytes.fromhex("82080005 0003 612f62 00".replace(" ", ""))
PUBLISH = mqtt.publish("up", b'{"type": "hello"}')
STREAM = CONNECT + SUBSCRIBE + PUBLISH + b"\x32\x06\x00\x01a\x00\x07x" + b"\xc0\x00" + b"\xe0\x00"


def parse(packet: mqtt.MqttPacket) -> object:
    match packet.kind:
        case mqtt.CONNECT:
            return mqtt.parse_connect(packet)
        case mqtt.PUBLISH:
            return mqtt.parse_publish(packet)
        case mqtt.SUBSCRIBE:
            return mqtt.parse_subscribe(packet)
    return packet.kind


EXPECTED = [
    mqtt.ConnectPacket("device", 60, "user", "passw"),
    (5, 1),
    mqtt.DevicePublishPacket("up", b'{"type": "hello"}'),
    mqtt.DevicePublishPacket("a", b"x", 7),
    mqtt.PING,
    mqtt.DISCONNECT,
]


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_any_cut_gives_the_same_packets(cuts: list[int]) -> None:
    reader, found = mqtt.MqttPacketReader(MAX_BYTES), []
    places = sorted(cuts)
    for start, end in zip([0, *places], [*places, len(STREAM)], strict=True):
        found += map(parse, reader.push(STREAM[start:end]))
    assert found == EXPECTED


def play(seed: int, num_streams: int) -> int:
    """How many packets were read."""
    rng, num_packets = random.Random(seed), 0
    for _ in range(num_streams):
        stream = bytearray(STREAM if rng.random() < 0.8 else rng.randbytes(60))
        for _ in range(rng.randint(0, 6)):
            stream[rng.randrange(len(stream))] = rng.randrange(256)
        with suppress(RemoteProtocolError):
            for packet in mqtt.MqttPacketReader(MAX_BYTES).push(bytes(stream)):
                num_packets += 1
                parse(packet)
    return num_packets


def test_nothing_breaks_the_reader() -> None:
    assert play(1, NUM_STREAMS) > NUM_STREAMS


@pytest.mark.slow
def test_nothing_breaks_the_reader_at_length() -> None:
    assert play(2, NUM_STREAMS_SLOW) > NUM_STREAMS_SLOW


@pytest.mark.parametrize(
    "stream",
    [
        b"\x30\xff\xff\xff\xff\x01",
        b"\x30\xff\xff\xff\x7f",
        b"\x34\x05\x00\x01a\x00\x07",
        b"\x30\x03\x00\x09a",
        b"\x30\x04\x00\x02\xff\xfe",
        b"\x82\x02\x00\x05",
        b"\x10\x06\x00\x04MQTT",
        CONNECT.replace(b"MQTT\x04", b"MQTT\x05"),
        CONNECT.replace(b"MQTT\x04", b"MQIs\x04"),
    ],
)
def test_what_is_broken_is_refused(stream: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        list(map(parse, mqtt.MqttPacketReader(MAX_BYTES).push(stream)))


def test_a_first_packet_that_is_no_connect() -> None:
    with pytest.raises(RemoteProtocolError, match="the first packet must be CONNECT"):
        mqtt.parse_connect(mqtt.MqttPacket(mqtt.PING, 0, b""))
