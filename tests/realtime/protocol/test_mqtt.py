"""MQTT without a broker: packets of both versions, messages of the bridge, and none that breaks them."""

from __future__ import annotations

import random
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt import _packet as paho
from paho.mqtt.client import MQTTv5
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from engine.api import ErrorInfo
from realtime.errors import LocalProtocolError, RemoteProtocolError
from realtime.protocol import model, mqtt311
from realtime.protocol.mqtt import messages
from realtime.protocol.mqtt import packet as mqtt
from realtime.protocol.mqtt.dialect import MqttOneShotDialect, MqttSessionDialect
from realtime.protocol.mqtt.messages import (
    AudioHeader,
    MqttAudioMessage,
    MqttDone,
    MqttSay,
    pack,
    parse_header,
    parse_server_message,
    properties,
    unpack,
)
from realtime.protocol.mqtt.packet import packed
from realtime.protocol.mqtt.topics import Topics
from realtime.protocol.mqtt311 import PUBLISH, MqttPacket, MqttPacketReader, varint
from tests.realtime.dialects.chaotic_client import AT_LENGTH, ChaoticClient
from tests.realtime.dialects.test_dialects import Shell

RIGHT = (
    {"t": "text", "d": "Hello there. "},
    {"t": "text", "d": "", "seq": 0},
    {"t": "flush"},
    {"t": "end"},
    {"t": "cancel", "played_ms": 120.5},
    {"t": "cancel"},
    {"t": "close"},
    {"t": "leave"},
    {"t": "ping", "d": "x"},
)
TOPICS = Topics("voice/v1", "tts")


def play(seed: int, num_messages: int) -> int:
    """How many sessions that took."""
    rng = random.Random(seed)
    client = ChaoticClient(rng, RIGHT)
    shell, num_sessions = Shell(MqttSessionDialect("s", model.SpeechOptions()), rng), 1
    for number in range(num_messages):
        if shell.num_closed:
            shell, num_sessions = Shell(MqttSessionDialect("s", model.SpeechOptions()), rng), num_sessions + 1
        message = client.message()
        with suppress(RemoteProtocolError):
            messages.parse_open(message if isinstance(message, bytes) else message.encode("utf-8", "surrogatepass"))
        try:
            shell.carry_out(list(shell.dialect.receive_message(message)))
        except RemoteProtocolError as error:
            shell.carry_out(list(shell.dialect.send_error(ErrorInfo(code=error.code, message=str(error)), None)))
        shell.live()
        assert set(shell.dialect.open_contexts) <= set(shell.open), f"message {number}"
    return num_sessions


@AT_LENGTH
def test_no_message_breaks_a_session(num_messages: int) -> None:
    assert play(1, num_messages) > num_messages / 500


PIECES = st.sampled_from("voice/v1 c x rsp / // + # $share é \0 .. in gone voice v1".split(" "))


@given(st.text(alphabet="voicerspv1/+#$c.-x\n", max_size=40) | st.lists(PIECES, max_size=9).map("".join))
def test_no_topic_of_an_answer_leads_elsewhere(topic: str) -> None:
    with suppress(RemoteProtocolError):
        client = TOPICS.client_of(topic)
        assert topic.startswith(f"voice/v1/c/{client}/")
        assert not set("+#$\n\0") & set(topic)
        assert topic.count("/") == 4


def test_topics() -> None:
    assert TOPICS.client_of("voice/v1/c/kitchen/rsp") == "kitchen"
    assert TOPICS.shared(TOPICS.open) == "$share/tts/voice/v1/open"
    assert TOPICS.session("kitchen", "s1").inbox == "voice/v1/s/kitchen/s1/in"
    assert TOPICS.client_of_will("voice/v1/c/kitchen/gone") == "kitchen"
    assert TOPICS.call_of_command("w", "voice/v1/calls/w/call-1/in") == "call-1"
    for wrong in (
        None,
        "",
        "voice/v1/c/kitchen",
        "voice/v1/c//rsp",
        "voice/v1/c/a/b/c",
        "other/c/a/rsp",
        "voice/v1/c/a/gone",
    ):
        with pytest.raises(RemoteProtocolError):
            TOPICS.client_of(wrong)


@given(
    st.builds(AudioHeader, *(st.integers(0, 2**32 - 1),) * 2, st.floats(0, 1e9), st.booleans()), st.binary(max_size=60)
)
def test_audio_goes_there_and_back(head: AudioHeader, sound: bytes) -> None:
    assert unpack(pack(MqttAudioMessage(head, sound))) == (head, sound)
    told = parse_header(properties(head))
    assert (told.reply, told.seq, told.last) == (head.reply, head.seq, head.last)
    assert told.ts_ms == pytest.approx(head.ts_ms)


@pytest.mark.parametrize("found", [[], [("seq", "x")], [("reply", "1"), ("seq", "2"), ("ts", "soon")]])
def test_audio_without_its_properties_is_refused(found: list[tuple[str, str]]) -> None:
    with pytest.raises(RemoteProtocolError):
        parse_header(found)


@pytest.mark.parametrize(
    "event",
    [
        messages.MqttStarted(reply=1, warnings=("a",)),
        messages.MqttWordMarks(reply=0, words=(messages.MqttWordMark(text="Hi", start_ms=1, end_ms=2, at=0),)),
        messages.MqttDone(reply=0, status="failed", audio_ms=1, heard="", remaining="x", played_ms=0),
        messages.MqttClosed(reason="close"),
    ],
)
def test_events_go_there_and_back(event: msgspec.Struct) -> None:
    assert messages.parse_server_message(messages.serialize(event)) == event


def carried_out(session: MqttSessionDialect, *messages: dict[str, object]) -> list[model.DialectCommand]:
    return [intent for message in messages for intent in session.receive_message(msgspec.json.encode(message))]


def test_text_of_a_reply_that_failed_goes_nowhere() -> None:
    session = MqttSessionDialect("s", model.SpeechOptions())
    carried_out(session, {"t": "text", "d": "One "})
    list(session.send_event(model.ContextEnded("0", "failed", error=ErrorInfo(code="overloaded", message="full"))))
    assert carried_out(session, {"t": "text", "d": "two "}, {"t": "flush"}, {"t": "end"}) == []
    assert carried_out(session, {"t": "text", "d": "Three"}) == [
        model.OpenContext("1", model.SpeechOptions()),
        model.AppendText("1", "Three"),
    ]


def test_pending_replies_are_cancelled_before_speaking_one() -> None:
    session = MqttSessionDialect("s", model.SpeechOptions())
    carried_out(session, *({"t": kind, **more} for _ in range(3) for kind, more in (("text", {"d": "x"}), ("end", {}))))
    cancels = carried_out(session, {"t": "cancel", "played_ms": 5})
    assert cancels == [model.CancelContext("2", None), model.CancelContext("1", None), model.CancelContext("0", 5)]


def test_an_end_without_a_text_is_a_reply_without_words() -> None:
    session = MqttSessionDialect("s", model.SpeechOptions())
    assert carried_out(session, {"t": "end"}) == [model.OpenContext("0", model.SpeechOptions()), model.EndContext("0")]


AUDIO = model.ContextAudio("0", b"x", 0.0, 20.0, (b"x",))
BROKEN = ErrorInfo(code="draining", message="the server is about to stop")


def one_shot() -> MqttOneShotDialect:
    dialect = MqttOneShotDialect("say/1", MqttSay(text="Hello.").to_options(0), "Hello.")
    assert [type(intent) for intent in dialect.start()] == [model.OpenContext, model.AppendText]
    return dialect


def ends(dialect: MqttOneShotDialect, *, broken_first: bool, broken_last: bool) -> list[model.DialectCommand]:
    told = [*dialect.send_event(AUDIO)]
    if broken_first:
        told += dialect.send_error(BROKEN, 1012)
    told += [*dialect.send_event(AUDIO), *dialect.send_event(model.ContextEnded("0", "cancelled"))]
    if broken_last:
        told += dialect.send_error(BROKEN, 1012)
    return told


@pytest.mark.parametrize("broken_first", [False, True])
@pytest.mark.parametrize("broken_last", [False, True])
def test_one_shot_ends_once_without_later_audio(broken_first: bool, broken_last: bool) -> None:
    told = ends(one_shot(), broken_first=broken_first, broken_last=broken_last)
    messages = [intent.message for intent in told if isinstance(intent, model.SendMessage)]
    last = parse_server_message(messages[-1])
    assert isinstance(last, MqttDone)
    assert last.status == ("failed" if broken_first else "cancelled")
    assert [type(message) for message in messages] == [bytes] * (1 if broken_first else 2) + [str]
    assert sum(isinstance(intent, model.CloseConnection) for intent in told) == 1


TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=0x24F, exclude_characters="\x7f"), max_size=90)
TOPIC_NAMES = st.text("abc/", min_size=1, max_size=300)
MESSAGES = st.tuples(
    st.none() | TEXT,
    st.none() | TOPIC_NAMES,
    st.none() | st.binary(max_size=200),
    st.none() | st.integers(0, 2**32 - 1),
    st.lists(st.tuples(TEXT, TEXT), max_size=4),
)
ONE = mqtt.publish("voice/v1", packed("audio/opus", "r", b"7", 5, [("seq", "1")]), b"sound")


@given(TOPIC_NAMES, MESSAGES, st.binary(max_size=20_000), st.booleans(), st.none() | st.integers(1, 0xFFFF))
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


MAX_BYTES = 4_096
CONNECT_BYTES = bytes.fromhex(
    "101f0004 4d515454 04c2 003c 0006 646576696365 0004 75736572 0005 7061737377".replace(" ", "")
)
SUBSCRIBE_BYTES = bytes.fromhex("82080005 0003 612f62 00".replace(" ", ""))
HELLO = mqtt311.publish("up", b'{"type": "hello"}')
STREAM = CONNECT_BYTES + SUBSCRIBE_BYTES + HELLO + b"\x32\x06\x00\x01a\x00\x07x" + b"\xc0\x00" + b"\xe0\x00"


def parse(packet: mqtt311.MqttPacket) -> object:
    match packet.kind:
        case mqtt311.CONNECT:
            return mqtt311.parse_connect(packet)
        case mqtt311.PUBLISH:
            return mqtt311.parse_publish(packet)
        case mqtt311.SUBSCRIBE:
            return mqtt311.parse_subscribe(packet)
    return packet.kind


EXPECTED = [
    mqtt311.ConnectPacket("device", 60, "user", "passw"),
    (5, 1),
    mqtt311.DevicePublishPacket("up", b'{"type": "hello"}'),
    mqtt311.DevicePublishPacket("a", b"x", 7),
    mqtt311.PING,
    mqtt311.DISCONNECT,
]


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_any_cut_gives_the_same_packets(cuts: list[int]) -> None:
    reader, found = mqtt311.MqttPacketReader(MAX_BYTES), []
    places = sorted(cuts)
    for start, end in zip([0, *places], [*places, len(STREAM)], strict=True):
        found += map(parse, reader.push(STREAM[start:end]))
    assert found == EXPECTED


def play_packets(seed: int, num_streams: int) -> int:
    """How many packets were read."""
    rng, num_packets = random.Random(seed), 0
    for _ in range(num_streams):
        stream = bytearray(STREAM if rng.random() < 0.8 else rng.randbytes(60))
        for _ in range(rng.randint(0, 6)):
            stream[rng.randrange(len(stream))] = rng.randrange(256)
        with suppress(RemoteProtocolError):
            for packet in mqtt311.MqttPacketReader(MAX_BYTES).push(bytes(stream)):
                num_packets += 1
                parse(packet)
    return num_packets


@AT_LENGTH
def test_nothing_breaks_the_reader(num_messages: int) -> None:
    assert play_packets(1, num_messages) > num_messages


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
        CONNECT_BYTES.replace(b"MQTT\x04", b"MQTT\x05"),
        CONNECT_BYTES.replace(b"MQTT\x04", b"MQIs\x04"),
    ],
)
def test_what_is_broken_is_refused(stream: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        list(map(parse, mqtt311.MqttPacketReader(MAX_BYTES).push(stream)))


def test_a_first_packet_that_is_no_connect() -> None:
    with pytest.raises(RemoteProtocolError, match="the first packet must be CONNECT"):
        mqtt311.parse_connect(mqtt311.MqttPacket(mqtt311.PING, 0, b""))
