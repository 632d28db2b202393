from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from realtime.errors import LocalProtocolError, RemoteProtocolError
from realtime.protocol.events import (
    ClientEvent,
    NativeSpeechSettings,
    PlaybackReport,
    ResponseCancel,
    ResponseCreate,
    SessionClose,
    SessionUpdate,
    TextAppend,
    TextEnd,
    TextFlush,
)
from realtime.protocol.transitions import (
    RESPONSE_TRANSITIONS,
    SESSION_TRANSITIONS,
    ResponseState,
    SessionState,
    SessionStateMachine,
)

OF_SESSIONS = {SessionUpdate, SessionClose, ResponseCreate}
OF_RESPONSES = {*get_args(ClientEvent)} - {SessionUpdate, SessionClose}
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


def test_a_reply_from_beginning_to_end() -> None:
    conversation = SessionStateMachine(max_remembered=4)
    assert conversation.apply_client_event(ResponseCreate(response_id="a"))
    assert conversation.apply_client_event(TextAppend(response_id="a", text="x"))
    assert conversation.apply_client_event(TextEnd(response_id="a"))
    assert code_of(conversation, TextAppend(response_id="a", text="x")) == "text_closed"
    assert code_of(conversation, TextEnd(response_id="a")) == "text_closed"
    conversation.on_response_done("a")
    assert code_of(conversation, TextAppend(response_id="a", text="x")) == "response_done"
    assert conversation.apply_client_event(ResponseCancel(response_id="a"))
    assert code_of(conversation, ResponseCreate(response_id="a")) == "duplicate_response"
    with pytest.raises(LocalProtocolError):
        conversation.on_response_done("a")


def test_a_cancelled_reply_takes_nothing_more() -> None:
    conversation = SessionStateMachine(max_remembered=4)
    conversation.apply_client_event(ResponseCreate(response_id="a"))
    assert conversation.apply_client_event(ResponseCancel(response_id="a"))
    assert not conversation.apply_client_event(ResponseCancel(response_id="a"))
    assert not conversation.apply_client_event(PlaybackReport(response_id="a", played_ms=1))
    assert code_of(conversation, TextFlush(response_id="a")) == "response_done"


def test_text_on_its_way_to_a_refused_reply_is_passed_over() -> None:
    conversation = SessionStateMachine(max_remembered=4)
    conversation.apply_client_event(ResponseCreate(response_id="a", end=True))
    conversation.on_refused("a")
    assert not conversation.apply_client_event(TextAppend(response_id="a", text="x"))
    assert conversation.live == ()
    assert conversation.apply_client_event(ResponseCreate(response_id="a"))


def test_text_on_its_way_to_a_reply_that_failed_is_passed_over() -> None:
    conversation = SessionStateMachine(max_remembered=4)
    conversation.apply_client_event(ResponseCreate(response_id="a"))
    conversation.on_response_done("a")
    for event in (TextAppend(response_id="a", text="x"), TextFlush(response_id="a"), TextEnd(response_id="a")):
        assert not conversation.apply_client_event(event)
    assert conversation.apply_client_event(ResponseCancel(response_id="a"))
    assert code_of(conversation, ResponseCreate(response_id="a")) == "duplicate_response"


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
