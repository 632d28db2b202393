from __future__ import annotations

from dataclasses import replace

import pytest

from realtime.protocol.dialects import base as on
from realtime.protocol.dialects.openai_beta import is_beta
from realtime.protocol.dialects.openai_realtime import OpenAIRealtime
from realtime.protocol.errors import RemoteProtocolError
from tests.realtime.dialects.play import Play, handshake


def beta() -> Play:
    return Play(OpenAIRealtime(replace(handshake(model="gpt-realtime"), headers={"openai-beta": "realtime=v1"})))


def test_a_turn_in_the_words_of_then() -> None:
    play = beta()
    item = {"id": "i1", "type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello."}]}
    told = play.say(type="conversation.item.create", item=item)
    assert told[0]["type"] == "conversation.item.created"
    told = play.say(type="response.create", response={"metadata": {"client_event_id": "e1"}})
    *messages, begin, text = told
    assert [message["type"] for message in messages] == [
        "response.created",
        "response.output_item.added",
        "conversation.item.created",
        "response.content_part.added",
    ]
    assert messages[0]["response"]["metadata"] == {"client_event_id": "e1"}
    assert messages[-1]["part"]["type"] == "audio"
    assert text == on.Append(begin.context, "Hello.", last=True)
    assert play.audio(begin.context)[0]["type"] == "response.audio.delta"
    kinds = [message["type"] for message in play.tell(on.Ended(begin.context))]
    assert kinds[0] == "response.audio_transcript.delta"
    assert kinds[1:3] == ["response.audio.done", "response.audio_transcript.done"]
    assert kinds[-1] == "response.done"


@pytest.mark.parametrize(
    ("name", "encoding", "rate"),
    [("pcm16", "pcm_s16le", 24_000), ("g711_ulaw", "mulaw", 8_000), ("g711_alaw", "alaw", 8_000)],
)
def test_a_flat_session(name: str, encoding: str, rate: int) -> None:
    play = beta()
    session = {"modalities": ["text", "audio"], "voice": "ada", "speed": 1.2, "output_audio_format": name}
    assert play.say(type="session.update", session=session)[0]["type"] == "session.updated"
    begin = play.say(type="input_text_buffer.append", delta="Hello ")[-2]
    assert (begin.wish.voice, begin.wish.speed) == ("ada", 1.2)
    assert (begin.wish.format.encoding, begin.wish.format.sample_rate) == (encoding, rate)


@pytest.mark.parametrize(
    "session", [{"output_audio_format": "mp3"}, {"output_audio_format": []}, {"modalities": "text"}]
)
def test_a_session_that_cannot_be_served(session: dict[str, object]) -> None:
    with pytest.raises(RemoteProtocolError):
        beta().say(type="session.update", session=session)


def test_browsers_ask_for_it_in_a_sub_protocol() -> None:
    offered = ("realtime", "openai-insecure-api-key.KEY", "openai-beta.realtime-v1")
    assert is_beta(replace(handshake(), subprotocols=offered))
    assert not is_beta(replace(handshake(), subprotocols=offered[:2]))


def test_without_the_header_it_is_the_form_of_today() -> None:
    play = Play(OpenAIRealtime(handshake()))
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello."}]}
    assert [told["type"] for told in play.say(type="conversation.item.create", item=item)] == [
        "conversation.item.added",
        "conversation.item.done",
    ]
