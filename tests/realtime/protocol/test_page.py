"""docs/reference/native-protocol.md and errors.md agree with the code, and sessions with their state machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api import SAMPLING_RANGES, SamplingParams
from realtime.config_sections import LimitSettings
from realtime.errors import RULES, CloseCode, ErrorRule, RemoteProtocolError
from realtime.protocol import native
from realtime.protocol.dialects.vllm_omni import SPEECH_FIELDS, VllmOmniMessage
from realtime.protocol.events import (
    AudioKind,
    ClientEvent,
    NativeAudioFormat,
    NativeSamplingOptions,
    NativeSpeechSettings,
    PlaybackReport,
    ResponseCancel,
    ResponseCreate,
    ServerEvent,
    SessionClose,
    SessionResume,
    SessionUpdate,
    TextAppend,
    TextEnd,
    TextFlush,
)
from realtime.protocol.transitions import (
    RESPONSE_TRANSITIONS,
    SERVER_TRANSITIONS,
    SESSION_TRANSITIONS,
    ResponseState,
    SessionState,
    SessionStateMachine,
)
from realtime.speech_api.request import SpeechRequestBody

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"
PAGE = (REFERENCE / "native-protocol.md").read_text()
SPEECH_API = (REFERENCE / "speech-api.md").read_text()
MODELS = (REFERENCE.parent / "design" / "models.md").read_text()
ERRORS = (REFERENCE / "errors.md").read_text()


def row_of(name: str, page: str = PAGE) -> str:
    return next(line for line in page.splitlines() if line.startswith(f"| `{name}` |"))


def diagram() -> str:
    """Both tables as Mermaid state diagrams, for docs/reference/native-protocol.md."""
    return "\n\n".join(f"```mermaid\nstateDiagram-v2\n{body}\n```" for body in (_session_body(), _response_body()))


def _session_body() -> str:
    moves: dict[tuple[str, str], list[str]] = {}
    for state, row in SESSION_TRANSITIONS.items():
        for event, move in row.items():
            if isinstance(move, SessionState):
                moves.setdefault((state, move), []).append(_tag(event))
    return "\n".join(
        ["    [*] --> new: session.created", *_arrows(moves), "    closing --> [*]: the last response.done"]
    )


def _response_body() -> str:
    moves: dict[tuple[str, str], list[str]] = {}
    for state, row in RESPONSE_TRANSITIONS.items():
        for event, move in row.items():
            if isinstance(move, ResponseState):
                moves.setdefault((state, move), []).append(_tag(event))
    for name, server_row in SERVER_TRANSITIONS.items():
        for state, after in server_row.items():
            moves.setdefault((state, after), []).append(f"({name})")
    return "\n".join(["    [*] --> unknown", *_arrows(moves)])


def _arrows(moves: dict[tuple[str, str], list[str]]) -> list[str]:
    return [f"    {state} --> {after}: {', '.join(names)}" for (state, after), names in moves.items()]


def _tag(event: type[ClientEvent]) -> str:
    return str(event.__struct_config__.tag)


def test_the_diagrams_are_those_of_the_tables() -> None:
    assert diagram() in PAGE


@pytest.mark.parametrize("kind", [*get_args(ClientEvent), *get_args(ServerEvent)])
def test_every_event_has_a_row_with_all_its_fields(kind: type[msgspec.Struct]) -> None:
    fields = row_of(str(kind.__struct_config__.tag)).split("|")[2]
    told = {name.rstrip("?") for name in re.findall(r"`([^`]+)`", fields)}
    assert told == set(kind.__struct_fields__)
    optional = {name.rstrip("?") for name in re.findall(r"`([^`]+\?)`", fields)}
    if kind in get_args(ClientEvent):
        assert optional == {field.name for field in msgspec.structs.fields(kind) if not field.required}


@pytest.mark.parametrize("name", [*NativeSpeechSettings.__struct_fields__, *NativeAudioFormat.__struct_fields__])
def test_every_setting_has_a_row(name: str) -> None:
    assert row_of(name)


def shown_range(name: str) -> str:
    low, high = SAMPLING_RANGES[name]
    least = "above 0" if 0 < low < 1 else f"{low:,g}"
    return f"{least} to " + ("2^64 - 1" if high == 2**64 - 1 else f"{high:,.0f}")


@pytest.mark.parametrize("name", NativeSamplingOptions.__struct_fields__)
def test_sampling_option_has_a_row_with_its_range(name: str) -> None:
    expected = shown_range(name) if name in SAMPLING_RANGES else ""
    assert row_of(name).startswith(f"| `{name}` | {expected}")


@pytest.mark.parametrize("name", SamplingParams.__struct_fields__)
def test_models_page_has_a_row_for_each_sampling_parameter(name: str) -> None:
    expected = shown_range(name) if name in SAMPLING_RANGES else ""
    assert row_of(name, MODELS).startswith(f"| `{name}` | {expected}")


def test_wires_take_every_sampling_parameter() -> None:
    params = set(SamplingParams.__struct_fields__)
    assert {*NativeSamplingOptions.__struct_fields__, "seed"} == params  # the seed is a setting beside them
    assert params <= set(SpeechRequestBody.__struct_fields__)
    [sampling] = re.findall(r"## Sampling and layout\n(.*?)\n## ", SPEECH_API, re.DOTALL)
    assert {name for name in params if f"`{name}`" not in sampling} == set()


def test_vllm_omni_takes_the_speech_api_fields() -> None:
    """All fields but those that a message of this wire has itself, and those of the answer's format."""
    own = {*VllmOmniMessage.__struct_fields__, "input", "sample_rate", "bitrate", "stream", "stream_format"}
    assert set(SpeechRequestBody.__struct_fields__) - own == SPEECH_FIELDS


@pytest.mark.parametrize(("code", "rule"), RULES.items())
def test_every_error_has_a_row(code: str, rule: ErrorRule) -> None:
    close = "" if rule.close is None else int(rule.close)
    assert row_of(code, ERRORS) == f"| `{code}` | {rule.fault} | {rule.http_status} | {close} | {rule.meaning} |"


def test_regular_ends_report_no_error() -> None:
    table = ERRORS.partition("| code | fault |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(RULES)


@pytest.mark.parametrize("code", CloseCode)
def test_every_close_code_has_a_row_with_the_page_s_words(code: CloseCode) -> None:
    source = (REFERENCE.parents[1] / "web_client" / "protocol" / "close.js").read_text()
    meaning = re.search(rf'\[CloseCode\.{code.name}\]: "(.*)",', source)
    assert meaning is not None
    assert f"| {int(code)} | {meaning[1]} |" in ERRORS


@pytest.mark.parametrize("line", re.findall(r"^([→←] \{(?:.|\n {3})*\})$", PAGE, re.MULTILINE))
def test_every_event_of_the_example_is_one(line: str) -> None:
    parse = native.parse_client if line[0] == "→" else native.parse_server
    assert parse(line[2:])


def test_the_example_of_an_audio_message_is_one() -> None:
    lines = PAGE.partition("```\n01 01")[2].partition("```")[0]
    digits = "0101" + "".join(re.split(r" {3,}(?=[a-z]+ )", line)[0] for line in lines.splitlines())
    message = native.parse_audio(bytes.fromhex(digits.replace(" ", "")))
    assert (message.kind, message.response, message.sequence, message.sample_time) == (AudioKind.OPUS, 1, 3, 5_760)
    assert [len(packet) for packet in message.packets] == [3, 2]


def test_the_numbers_are_those_of_the_settings() -> None:
    limits, text = LimitSettings(), " ".join(PAGE.split())
    assert f"the last {limits.max_retained_responses} responses" in text
    assert f"at most {limits.max_speech_request_chars:,} characters" in text
    assert (limits.reader_timeout_s, limits.text_timeout_s) == (10, 60)


OF_SESSIONS = {SessionUpdate, SessionResume, SessionClose, ResponseCreate}
OF_RESPONSES = {*get_args(ClientEvent)} - {SessionUpdate, SessionResume, SessionClose}
STEPS = st.sampled_from(
    [
        *(
            make(response_id=response_id)
            for response_id in ("a", "b", "c")
            for make in (
                ResponseCreate,
                lambda response_id: ResponseCreate(response_id=response_id, end=True),
                lambda response_id: TextAppend(response_id=response_id, text="x"),
                TextFlush,
                TextEnd,
                ResponseCancel,
                lambda response_id: PlaybackReport(response_id=response_id, played_ms=1),
            )
        ),
        SessionUpdate(settings=NativeSpeechSettings()),
        SessionClose(),
        "refused",
        "done a",
        "done b",
        "done c",
    ]
)


def code_of(conversation: SessionStateMachine, event: ClientEvent) -> str:
    with pytest.raises(RemoteProtocolError) as refusal:
        conversation.apply_client_event(event)
    return refusal.value.code


def test_tables_cover_every_event_in_every_state() -> None:
    assert set(SESSION_TRANSITIONS) == set(SessionState)
    assert set(RESPONSE_TRANSITIONS) == set(ResponseState)
    assert all(set(row) == OF_SESSIONS for row in SESSION_TRANSITIONS.values())
    assert all(set(row) == OF_RESPONSES for row in RESPONSE_TRANSITIONS.values())


def test_a_closing_session_takes_no_new_reply() -> None:
    conversation = SessionStateMachine(max_remembered=4)
    conversation.apply_client_event(ResponseCreate(response_id="a"))
    assert conversation.apply_client_event(SessionClose())
    assert code_of(conversation, ResponseCreate(response_id="b")) == "session_closed"
    assert code_of(conversation, SessionClose()) == "session_closed"
    assert conversation.apply_client_event(TextAppend(response_id="a", text="x"))


def test_only_the_last_replies_are_remembered() -> None:
    conversation = SessionStateMachine(max_remembered=1)
    for response_id in ("a", "b"):
        conversation.apply_client_event(ResponseCreate(response_id=response_id))
        conversation.on_response_done(response_id)
    assert code_of(conversation, ResponseCancel(response_id="a")) == "unknown_response"
    assert conversation.apply_client_event(ResponseCancel(response_id="b"))


@settings(max_examples=300)
@given(st.lists(STEPS, max_size=60))
def test_each_response_ends_once_for_any_messages(steps: list[ClientEvent | str]) -> None:
    conversation = SessionStateMachine(max_remembered=2)
    live: set[str] = set()
    for step in steps:
        if isinstance(step, str):
            response_id = step.removeprefix("done ")
            if response_id in live:
                conversation.on_response_done(response_id)
                live.remove(response_id)
            continue
        try:
            acted = conversation.apply_client_event(step)
        except RemoteProtocolError:
            continue
        if isinstance(step, ResponseCreate) and acted:
            assert step.response_id is not None
            assert step.response_id not in live
            live.add(step.response_id)
        assert len(conversation.live) == len(live)
