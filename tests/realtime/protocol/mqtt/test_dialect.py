"""The codec of the bridge: what a session makes of its messages, and that none of them breaks it."""

from __future__ import annotations

import random
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import ErrorInfo
from realtime.errors import RemoteProtocolError
from realtime.protocol import model
from realtime.protocol.mqtt import messages
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
from realtime.protocol.mqtt.topics import Topics
from tests.realtime.dialects.chaotic_client import ChaoticClient
from tests.realtime.dialects.test_dialects import Shell

NUM_MESSAGES, NUM_MESSAGES_SLOW = 2_000, 50_000
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
        assert set(shell.dialect._lines) <= set(shell.open), f"message {number}"
    return num_sessions


def test_no_message_breaks_a_session() -> None:
    assert play(1, NUM_MESSAGES) > 5


@pytest.mark.slow
def test_no_message_breaks_a_session_at_length() -> None:
    assert play(2, NUM_MESSAGES_SLOW) > 100


@pytest.mark.slow
def test_no_topic_of_an_answer_leads_elsewhere_at_length() -> None:
    rng = random.Random(3)
    pieces = (
        "voice/v1",
        "c",
        "x",
        "rsp",
        "/",
        "//",
        "+",
        "#",
        "$share",
        "é",
        "\0",
        "..",
        "in",
        "gone",
        "",
        "voice",
        "v1",
    )
    for _ in range(NUM_MESSAGES_SLOW):
        check_answer_topic("".join(rng.choice(pieces) for _ in range(rng.randint(0, 9))))


@given(st.text(alphabet="voicerspv1/+#$c.-x\n", max_size=40))
def test_no_topic_of_an_answer_leads_elsewhere(topic: str) -> None:
    check_answer_topic(topic)


def check_answer_topic(topic: str) -> None:
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


def text() -> MqttOneShotDialect:
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
    told = ends(text(), broken_first=broken_first, broken_last=broken_last)
    messages = [intent.message for intent in told if isinstance(intent, model.SendMessage)]
    last = parse_server_message(messages[-1])
    assert isinstance(last, MqttDone)
    assert last.status == ("failed" if broken_first else "cancelled")
    assert [type(message) for message in messages] == [bytes] * (1 if broken_first else 2) + [str]
    assert sum(isinstance(intent, model.CloseConnection) for intent in told) == 1
