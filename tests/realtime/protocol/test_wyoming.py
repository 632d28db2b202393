"""The codec of Wyoming: any way of cutting the stream gives the same events, and nothing breaks it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime.errors import RemoteProtocolError
from realtime.protocol import model
from realtime.protocol.wyoming import WyomingDialect, WyomingEvent, WyomingEventReader, serialize
from tests.realtime.dialects.chaotic_client import AT_LENGTH, ChaoticClient
from tests.realtime.dialects.test_dialects import Shell

JSON = st.dictionaries(st.text(max_size=5), st.text(max_size=9) | st.integers(-5, 5) | st.none(), max_size=3)
EVENTS = st.lists(st.builds(WyomingEvent, st.text(max_size=12), JSON, st.binary(max_size=40)), max_size=5)
RIGHT = tuple(
    serialize(WyomingEvent(kind, data, payload))
    for kind, data, payload in (
        ("describe", {}, b""),
        ("ping", {"text": "x"}, b""),
        ("synthesize", {"text": "Hello there.", "voice": {"name": "clara"}}, b""),
        ("synthesize-start", {"voice": {"language": "en"}}, b""),
        ("synthesize-chunk", {"text": "Hello "}, b""),
        ("synthesize-stop", {}, b""),
        ("audio-chunk", {"rate": 16_000}, bytes(20)),
    )
)


def dialect() -> WyomingDialect:
    return WyomingDialect({"tts": []}, 24_000, 4_096)


def said(session: WyomingDialect, *events: WyomingEvent) -> list[model.DialectCommand]:
    return [intent for event in events for intent in session.receive_message(serialize(event))]


def told(intents: list[model.DialectCommand]) -> list[WyomingEvent]:
    reader = WyomingEventReader(100_000)
    return [
        event for intent in intents if isinstance(intent, model.SendMessage) for event in reader.push(intent.message)
    ]


@given(EVENTS, st.data())
def test_any_cut_gives_the_same_events(events: list[WyomingEvent], data: st.DataObject) -> None:
    stream = b"".join(map(serialize, events))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    reader, found = WyomingEventReader(4_096), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += reader.push(stream[start:end])
    assert found == events == list(WyomingEventReader(4_096).push(stream))


def play(seed: int, num_messages: int) -> int:
    rng = random.Random(seed)
    client, num_connections = ChaoticClient(rng, RIGHT), 1
    shell = Shell(dialect(), rng)
    for _ in range(num_messages):
        if shell.num_closed:
            shell, num_connections = Shell(dialect(), rng), num_connections + 1
        message = client.message()
        piece = message if isinstance(message, bytes) else message.encode("utf-8", "surrogatepass") + b"\n"
        cut = rng.randint(0, len(piece))
        for part in (piece[:cut], piece[cut:]):
            shell.carry_out(list(shell.dialect.receive_message(part)))
        shell.live()
        assert shell.dialect._sounding | shell.dialect._streamed <= set(shell.open) | {None}
    return num_connections


@AT_LENGTH
def test_nothing_breaks_a_connection(num_messages: int) -> None:
    assert play(1, num_messages) > num_messages / 500


@pytest.mark.parametrize(
    ("stream", "code"),
    [
        (b"{\n", "malformed_json"),
        (b"[]\n", "invalid_event"),
        (b'{"type": 3}\n', "invalid_event"),
        (b'{"type": "ping", "data_length": -1}\n', "invalid_event"),
        (b'{"type": "ping", "data_length": 5000}\n', "message_too_big"),
        (b'{"type": "ping", "payload_length": 2000000}\n', "message_too_big"),
        (b'{"type": "ping", "data_length": 3}\n[1]', "invalid_event"),
        (b"x" * 70_000, "message_too_big"),
    ],
)
def test_invalid_stream_is_reported_and_closed(stream: bytes, code: str) -> None:
    session = dialect()
    intents = list(session.receive_message(stream))
    assert [event.data["code"] for event in told(intents)] == [code]
    assert intents[-1] == model.CloseConnection(1002, code)
    assert list(session.receive_message(serialize(WyomingEvent("ping")))) == []


@pytest.mark.parametrize(
    ("kind", "data", "param"),
    [
        ("synthesize", {}, "text"),
        ("synthesize", {"text": 3}, "text"),
        ("synthesize", {"text": "x", "voice": "clara"}, "voice"),
        ("synthesize", {"text": "x", "voice": {"name": ["x"]}}, "voice.name"),
        ("synthesize", {"text": "<speak/>", "text_format": "ssml"}, "text_format"),
        ("synthesize-chunk", {"text": "x"}, "synthesize-chunk"),
        ("synthesize-stop", {}, "synthesize-stop"),
    ],
)
def test_invalid_event_is_reported_and_affects_nothing_else(kind: str, data: dict[str, Any], param: str) -> None:
    session = dialect()
    intents = said(session, WyomingEvent(kind, data))
    assert [event.type for event in told(intents)] == ["error"]
    assert len(intents) == 1
    assert told(said(session, WyomingEvent("ping", {"text": "y"}))) == [WyomingEvent("pong", {"text": "y"})]
    with pytest.raises(RemoteProtocolError) as error:
        list(session._act(WyomingEvent(kind, data)))
    assert error.value.param == param


def test_full_text_is_repeated_for_clients_without_chunks() -> None:
    session = dialect()
    intents = said(
        session,
        WyomingEvent("synthesize-start", {"voice": {"name": "clara"}}),
        WyomingEvent("synthesize-chunk", {"text": "Hello "}),
        WyomingEvent("synthesize", {"text": "Hello there."}),
        WyomingEvent("synthesize-chunk", {"text": "there."}),
        WyomingEvent("synthesize-stop"),
    )
    appended = [intent.text for intent in intents if isinstance(intent, model.AppendText)]
    assert appended == ["Hello ", "there."]
    told_at_end = told(list(session.send_event(model.ContextEnded("1"))))
    assert [event.type for event in told_at_end] == ["audio-start", "audio-stop", "synthesize-stopped"]
