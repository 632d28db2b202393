from __future__ import annotations

import pytest

from engine.api import SpeechRequest
from engine.ipc import Command, SubmitRequest
from engine.streams import StreamTable, replace_surrogates


def test_a_submit_that_cannot_be_sent_leaves_nothing_behind() -> None:
    def refuse(command: Command) -> None:
        raise OverflowError("cannot be encoded")

    table = StreamTable(refuse)
    for _ in range(3):
        with pytest.raises(OverflowError):
            table.submit(SpeechRequest(request_id="r"))
    assert len(table) == 0


def test_lone_surrogates_reach_no_encoder() -> None:
    sent: list[Command] = []
    stream = StreamTable(sent.append).submit(SpeechRequest(request_id="r", text="a\ud800b"))
    stream.push_text("\udfff")
    submitted = sent[0]
    assert isinstance(submitted, SubmitRequest)
    assert submitted.request.text == "a\ufffdb"
    assert replace_surrogates("plain") == "plain"
    assert replace_surrogates("é\udc80") == "é\ufffd"
