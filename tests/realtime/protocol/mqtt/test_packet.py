"""MQTT packets and properties are packed and read as paho-mqtt does."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt import _packet as paho
from paho.mqtt.client import MQTTv5
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from realtime.errors import LocalProtocolError, RemoteProtocolError
from realtime.protocol.mqtt import packet as mqtt
from realtime.protocol.mqtt.packet import packed
from realtime.protocol.mqtt311 import PUBLISH, MqttPacket, MqttPacketReader, varint

TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=0x24F, exclude_characters="\x7f"), max_size=90)
TOPICS = st.text("abc/", min_size=1, max_size=300)
MESSAGES = st.tuples(
    st.none() | TEXT,
    st.none() | TOPICS,
    st.none() | st.binary(max_size=200),
    st.none() | st.integers(0, 2**32 - 1),
    st.lists(st.tuples(TEXT, TEXT), max_size=4),
)
ONE = mqtt.publish("voice/v1", packed("audio/opus", "r", b"7", 5, [("seq", "1")]), b"sound")


@given(TOPICS, MESSAGES, st.binary(max_size=20_000), st.booleans(), st.none() | st.integers(1, 0xFFFF))
def test_paho_reads_what_we_write(topic: str, named: tuple, payload: bytes, retain: bool, number: int | None) -> None:
    written = mqtt.publish(topic, packed(*named), payload, retain, number)
    (found,) = MqttPacketReader(100_000).push(written)
    assert found.as_sent() == written
    read = paho.decode_publish(written[0], bytearray(found.body), MQTTv5)
    assert (read.topic.decode(), bytes(read.payload), read.retain) == (topic, payload, retain)
    assert (read.qos, read.mid) == ((0, 0) if number is None else (1, number))
    ours = mqtt.parse_publish(found)
    assert (ours.topic, ours.payload, ours.packet_id, ours.retained) == (topic, payload, number, retain)
    content_type, response_topic, correlation, _, user = named
    assert (ours.content_type, ours.response_topic, ours.correlation) == (content_type, response_topic, correlation)
    assert ours.user == user


@given(st.integers(1, 0xFFFF), st.lists(st.integers(1, 1_000), max_size=1), st.booleans(), TEXT)
def test_we_read_what_paho_writes(number: int, subscription: list[int], utf8: bool, text: str) -> None:
    theirs = Properties(PacketTypes.PUBLISH)
    theirs.PayloadFormatIndicator = int(utf8)
    theirs.UserProperty = ("name", text)
    body = b"\x00\x01a" + number.to_bytes(2, "big")
    listed = b"".join(b"\x0b" + varint(one) for one in subscription)
    found = theirs.pack()
    properties = varint(len(found) - 1 + len(listed)) + found[1:] + listed
    read = mqtt.parse_publish(MqttPacket(PUBLISH, 2, body + properties + b"payload"))
    assert (read.packet_id, read.user, read.payload) == (number, [("name", text)], b"payload")


@given(st.integers(0, len(ONE) - 1), st.integers(0, 255), st.integers(0, len(ONE)))
def test_bent_ones_are_refused_or_read(at: int, value: int, length: int) -> None:
    body = bytearray(ONE[2:])[:length]
    if at < len(body):
        body[at] = value
    with suppress(RemoteProtocolError):
        mqtt.parse_publish(MqttPacket(PUBLISH, value & 3, bytes(body)))


def test_a_topic_that_is_too_long() -> None:
    with pytest.raises(LocalProtocolError, match="topic of 70000"):
        mqtt.publish("a" * 70_000, b"\0", b"")


@given(
    st.none() | TEXT,
    st.none() | st.just("voice/v1/c/x/rsp"),
    st.none() | st.binary(max_size=200),
    st.none() | st.integers(0, 2**32 - 1),
    st.lists(st.tuples(TEXT, TEXT), max_size=4),
)
def test_as_paho_packs_them(
    content_type: str | None, topic: str | None, tag: bytes | None, expiry_s: int | None, user: list[tuple[str, str]]
) -> None:
    theirs = Properties(PacketTypes.PUBLISH)
    named = {"ContentType": content_type, "ResponseTopic": topic, "CorrelationData": tag, "UserProperty": user or None}
    for name, value in {**named, "MessageExpiryInterval": expiry_s}.items():
        if value is not None:
            setattr(theirs, name, value)
    found = Properties(PacketTypes.PUBLISH)
    ours = packed(content_type, topic, tag, expiry_s, user)
    assert found.unpack(ours)[1] == len(ours)
    assert len(ours) == len(theirs.pack())
    assert found.json() == theirs.json()


def test_what_is_too_long_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="at most 65535 bytes, this one 70000"):
        packed(correlation=bytes(70_000))
