from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime.errors import LocalProtocolError, RemoteProtocolError
from realtime.protocol import native
from realtime.protocol.events import AudioKind, AudioMessage, ClientEvent, PlaybackReport, ServerEvent, TextAppend
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


@pytest.mark.parametrize(
    ("text", "code", "param"),
    [
        ("", "malformed_json", None),
        ("{", "malformed_json", None),
        ('{"type":"session.close"} x', "malformed_json", None),
        ('{"type":"playback.report","response_id":"a","played_ms":NaN}', "malformed_json", None),
        ('{"type":"text.append","response_id":"a","text":"\\ud800"}', "malformed_json", None),
        ('{"type":"text.append","response_id":"a","text":"\ud800"}', "malformed_json", None),
        ('{"x":' + "[" * 100_000 + "]" * 100_000 + ',"type":"session.close"}', "malformed_json", None),
        ("[]", "invalid_event", None),
        ('"session.close"', "invalid_event", None),
        ("{}", "unknown_event", "type"),
        ('{"type":"session.open"}', "unknown_event", "type"),
        ('{"type":7}', "unknown_event", "type"),
        ('{"type":"response.done"}', "unknown_event", "type"),
        ('{"type":"text.append","response_id":"a"}', "invalid_event", "text"),
        ('{"type":"text.append","response_id":"a","text":5}', "invalid_event", "text"),
        ('{"type":"text.append","response_id":"a","text":"b","more":1}', "invalid_event", "more"),
        ('{"type":"text.append","response_id":"","text":"b"}', "invalid_event", "response_id"),
        ('{"type":"text.append","response_id":"a b","text":"b"}', "invalid_event", "response_id"),
        ('{"type":"text.append","response_id":"a\\n","text":"b"}', "invalid_event", "response_id"),
        ('{"type":"text.append","response_id":"' + "a" * 65 + '","text":"b"}', "invalid_event", "response_id"),
        ('{"type":"playback.report","response_id":"a","played_ms":1e999}', "invalid_event", "played_ms"),
        ('{"type":"response.create","settings":{"format":{"sample_rate":"8000"}}}', "invalid_event",
         "settings.format.sample_rate"),
        ('{"type":"response.create","settings":{"format":{"rate":1}}}', "invalid_event", "settings.format.rate"),
        ('{"type":"response.create","settings":{"pace":"fast"}}', "invalid_event", "settings.pace"),
    ],
)  # fmt: skip
def test_what_is_no_event_is_refused_by_name(text: str, code: str, param: str | None) -> None:
    with pytest.raises(RemoteProtocolError) as refusal:
        native.parse_client(text)
    assert (refusal.value.code, refusal.value.param) == (code, param)


def test_older_clients_pass_over_fields_they_do_not_know() -> None:
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
