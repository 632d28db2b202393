from __future__ import annotations

import pytest

from engine.api import EngineOverloaded, SpeechRequest
from engine.ipc import Command, SubmitRequest
from engine.runtime.queue_limits import QueueLimits
from engine.streams import StreamTable, replace_surrogates

ROOM = QueueLimits(new=1, continuing=2, for_burst=1, for_burst_of_group=1)


def test_a_submit_that_cannot_be_sent_leaves_nothing_behind() -> None:
    def refuse(command: Command) -> None:
        raise OverflowError("cannot be encoded")

    table = StreamTable(refuse)
    for _ in range(3):
        with pytest.raises(OverflowError):
            table.submit(SpeechRequest(request_id="r"), ROOM)
    assert len(table) == 0


def test_no_more_than_the_capacity_is_taken() -> None:
    sent: list[Command] = []
    table = StreamTable(sent.append)
    table.submit(SpeechRequest(request_id="one"), ROOM)
    with pytest.raises(EngineOverloaded):
        table.submit(SpeechRequest(request_id="two"), ROOM)
    assert len(sent) == 1


def test_a_reply_that_speaks_is_not_refused_its_next_segment_while_there_is_any_room() -> None:
    sent: list[Command] = []
    table = StreamTable(sent.append)
    table.submit(SpeechRequest(request_id="one"), ROOM)
    table.submit(SpeechRequest(request_id="two", segment=1), ROOM)
    with pytest.raises(EngineOverloaded, match="2 requests are active; the limit is 2") as refusal:
        table.submit(SpeechRequest(request_id="three", segment=2), ROOM)
    assert refusal.value.retry_after_ms > 0
    assert len(sent) == 2


def test_lone_surrogates_reach_no_encoder() -> None:
    sent: list[Command] = []
    stream = StreamTable(sent.append).submit(SpeechRequest(request_id="r", text="a\ud800b"), ROOM)
    stream.push_text("\udfff")
    submitted = sent[0]
    assert isinstance(submitted, SubmitRequest)
    assert submitted.request.text == "a\ufffdb"
    assert replace_surrogates("plain") == "plain"
    assert replace_surrogates("é\udc80") == "é\ufffd"
