"""docs/reference/native-protocol.md and errors.md agree with the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from realtime.config import LimitSettings
from realtime.errors import MEANINGS, RULES, CloseCode, ErrorRule
from realtime.protocol import native
from realtime.protocol.events import (
    AudioKind,
    ClientEvent,
    NativeAudioFormat,
    NativeSamplingOptions,
    NativeSpeechSettings,
    ServerEvent,
)
from realtime.protocol.transitions import (
    RESPONSE_TRANSITIONS,
    SERVER_TRANSITIONS,
    SESSION_TRANSITIONS,
    ResponseState,
    SessionState,
)

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"
PAGE = (REFERENCE / "native-protocol.md").read_text()
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
        ["    [*] --> active: session.created", *_arrows(moves), "    closing --> [*]: the last response.done"]
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


def test_sampling_is_told() -> None:
    assert all(f"`{name}`" in row_of("sampling") for name in NativeSamplingOptions.__struct_fields__)


@pytest.mark.parametrize(("code", "rule"), RULES.items())
def test_every_error_has_a_row(code: str, rule: ErrorRule) -> None:
    close = "" if rule.close is None else int(rule.close)
    assert row_of(code, ERRORS) == f"| `{code}` | {rule.fault} | {rule.http_status} | {close} | {rule.meaning} |"


def test_no_error_is_told_that_is_none() -> None:
    table = ERRORS.partition("| code | fault |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(RULES)


@pytest.mark.parametrize(("code", "meaning"), MEANINGS.items())
def test_every_close_code_has_a_row(code: CloseCode, meaning: str) -> None:
    assert f"| {int(code)} | {meaning} |" in ERRORS
    assert set(MEANINGS) == set(CloseCode)


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
