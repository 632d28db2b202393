"""A text that came whole: whatever happens to it, one message is the last."""

from __future__ import annotations

import pytest

from engine.api import ErrorInfo
from realtime.protocol import model
from realtime.protocol.mqtt.dialect import MqttOneShotDialect
from realtime.protocol.mqtt.messages import MqttDone, MqttSay, parse_server_message

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
def test_there_is_one_last_message_and_no_sound_behind_it(broken_first: bool, broken_last: bool) -> None:
    told = ends(text(), broken_first=broken_first, broken_last=broken_last)
    messages = [intent.message for intent in told if isinstance(intent, model.SendMessage)]
    last = parse_server_message(messages[-1])
    assert isinstance(last, MqttDone)
    assert last.status == ("failed" if broken_first else "cancelled")
    assert [type(message) for message in messages] == [bytes] * (1 if broken_first else 2) + [str]
    assert sum(isinstance(intent, model.CloseConnection) for intent in told) == 1
