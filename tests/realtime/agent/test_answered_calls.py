"""Calls and devices that the built-in agent answers: real sockets, the real detector, stub model and recognizer."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.asyncio.client import ClientConnection

from realtime.calls.builtin_agent import SILENT_LINE_S
from realtime.config import ConfigError
from realtime.protocol.telephony.xiaozhi import SAMPLE_RATE
from sessions.audio.g711 import pcm_to_mulaw
from sessions.audio.opus import OpusEncoder, OpusSettings
from sessions.audio.pcm import Pcm
from sessions.audio.resampler import Resampler
from sessions.clock import now_s
from tests.fakes.engine import FakeScript, FakeSpeechEngine
from tests.realtime.agent.stub_backend import ScriptedAnswer, StubBackend
from tests.realtime.calls import twilio_simulator
from tests.realtime.calls.test_sockets import dial, told, twilio_call
from tests.realtime.calls.twilio_simulator import TwilioSimulator
from tests.realtime.devices.test_xiaozhi import device, greet, heard, is_tts
from tests.realtime.leftovers import complaints, leaves_no_object
from tests.realtime.live_server import LiveServer, live_server, until

FAILED = "Sorry, something went wrong. Please try again."
UNCLEAR = "Sorry, I did not catch that."
CALL = {"id": "call_1", "name": "get_time", "arguments": "{}"}
SILENCE_S = 1.0
SPOKEN = FakeScript(ms_per_char=30.0, first_chunk_s=0.005, real_time_factor=0.02)
LONG = ScriptedAnswer("This is a long answer that goes on and on and on. " * 5, speed=10)


@dataclass
class CallingPhone:
    """A call by Twilio's wire, and an agent at the calls API."""

    call_id: str
    far: TwilioSimulator
    events: ClientConnection
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def speak(self, pcm: Pcm, silence_s: float = SILENCE_S) -> None:
        """Send speech and the silence that ends a turn, as fast as it is accepted."""
        line = pcm_to_mulaw(np.concatenate([pcm, np.zeros(round(silence_s * 8_000), np.float32)]))
        for start in range(0, len(line) - 159, 160):
            payload = base64.b64encode(line[start : start + 160]).decode()
            self.far._say(twilio_simulator.media(payload, next(self.numbers)))

    async def command(self, kind: str, **fields: str) -> None:
        await self.events.send(json.dumps({"type": kind, "call_id": self.call_id} | fields))

    async def event(self, kind: str) -> dict[str, Any]:
        return await told(self.events, kind)


def flags(backend: StubBackend, **more: object) -> dict[str, object]:
    urls = {"agent__llm_url": backend.url, "agent__stt_url": backend.url, "agent__llm_model": "m"}
    return urls | {"calls__agent": "builtin", "agent__retry_pause_s": 0.01} | more


@asynccontextmanager
async def calling(live: LiveServer) -> AsyncIterator[CallingPhone]:
    async with dial(live, "/v1/calls") as events, twilio_call(live) as far:
        call_id = (await told(events, "call.connected"))["call_id"]
        yield CallingPhone(call_id, far, events)


@asynccontextmanager
async def answered_call(backend: StubBackend, **more: object) -> AsyncIterator[CallingPhone]:
    async with live_server(FakeSpeechEngine(SPOKEN), **flags(backend, **more)) as live, calling(live) as phone:
        yield phone


def turns_of(chat: dict[str, Any]) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in chat["messages"][1:]]


def agent_tasks() -> list[str]:
    return [name for task in asyncio.all_tasks() if (name := task.get_name()).startswith("voicewire agent")]


async def test_turns_are_answered_and_remembered(
    backend: StubBackend, line_speech: Pcm, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "voicewire.calls")
    backend.transcripts += ["How are you?", "And you?"]
    backend.answers += [ScriptedAnswer("Fine, thank you."), ScriptedAnswer("Very well.")]
    async with answered_call(backend) as phone:
        for _ in range(2):
            phone.speak(line_speech)
            assert (await phone.event("reply.played"))["confirmed"]
        assert phone.far.played_s > 0.5
        assert phone.far.num_clears == 0
    assert turns_of(backend.chats[1]) == [
        ("user", "How are you?"),
        ("assistant", "Fine, thank you."),
        ("user", "And you?"),
    ]
    lines = [record for record in caplog.records if record.getMessage() == "turn answered"]
    assert len(lines) == 2
    assert all(getattr(lines[0], name) is not None for name in ("endpointing_ms", "stt_ms", "first_audio_ms"))
    assert "thank" not in caplog.text


async def test_voice_interrupts_and_history_is_what_was_heard(backend: StubBackend, line_speech: Pcm) -> None:
    backend.transcripts += ["Tell me.", "Stop."]
    backend.answers += [LONG, ScriptedAnswer("Yes?")]
    async with answered_call(backend) as phone:
        phone.speak(line_speech)
        await until(lambda: phone.far.played_s > 1.0)
        phone.speak(line_speech)
        await phone.event("call.barge_in")
        cut = await phone.event("reply.interrupted")
        assert cut["cause"] == "caller"
        await phone.event("reply.played")
        assert phone.far.num_clears == 1
    said = cut["heard"]["text"].strip()
    assert said
    assert LONG.text.startswith(said)
    assert turns_of(backend.chats[1]) == [("user", "Tell me."), ("assistant", said), ("user", "Stop.")]


async def test_turn_before_the_answer_continues_the_first(backend: StubBackend, line_speech: Pcm) -> None:
    """The caller goes on while the language model is still silent: both turns are answered at once."""
    backend.transcripts += ["I would like", "a tea."]
    backend.answers += [ScriptedAnswer(stalls_at=0), ScriptedAnswer("With milk?")]
    async with answered_call(backend) as phone:
        phone.speak(line_speech)
        await until(lambda: len(backend.chats) == 1)
        phone.speak(line_speech)
        await phone.event("reply.played")
    assert turns_of(backend.chats[1]) == [("user", "I would like\na tea.")]


async def test_line_that_stops_sending_ends_its_turn(backend: StubBackend, line_speech: Pcm) -> None:
    """Muted, or without packets of silence."""
    async with answered_call(backend) as phone:
        phone.speak(line_speech, silence_s=0.0)
        await phone.event("reply.played")
        assert phone.far.num_clears == 0
    assert turns_of(backend.chats[0]) == [("user", "hello")]


async def test_without_barge_in_a_turn_waits_for_the_answer(backend: StubBackend, line_speech: Pcm) -> None:
    first = "This goes on and on for a while."
    backend.transcripts += ["One?", "Two?"]
    backend.answers += [ScriptedAnswer(first), ScriptedAnswer("Two.")]
    async with answered_call(backend, calls__barge_in=False) as phone:
        phone.speak(line_speech)
        await until(lambda: phone.far.played_s > 0.1)
        phone.speak(line_speech)
        for _ in range(2):
            await phone.event("reply.played")
        assert phone.far.num_clears == 0
    assert turns_of(backend.chats[1]) == [("user", "One?"), ("assistant", first), ("user", "Two?")]


@pytest.mark.parametrize(
    ("transcripts", "answer", "phrase"),
    [
        (["Hello"], ScriptedAnswer(status=400), FAILED),
        (["Hello"], ScriptedAnswer("", [CALL]), FAILED),
        ([500, 500], None, FAILED),
        ([" "], None, UNCLEAR),
    ],
    ids=["model", "only a function call", "recognizer", "nothing understood"],
)
async def test_failure_is_spoken(
    backend: StubBackend,
    line_speech: Pcm,
    transcripts: list[str | int | None],
    answer: ScriptedAnswer | None,
    phrase: str,
) -> None:
    backend.transcripts += [*transcripts, "Again"]
    backend.answers += [*filter(None, [answer]), ScriptedAnswer("Here I am.")]
    async with answered_call(backend) as phone:
        for _ in range(2):
            phone.speak(line_speech)
            await phone.event("reply.played")
    asked = [] if answer is None else ["Hello"]
    assert [text for role, text in turns_of(backend.chats[-1]) if role == "user"] == [*asked, "Again"]
    assert phrase in json.dumps(backend.chats[-1]["messages"])


async def test_too_long_answer_fails_and_the_call_goes_on(backend: StubBackend, line_speech: Pcm) -> None:
    backend.answers += [ScriptedAnswer("word " * 20), ScriptedAnswer("Short.")]
    async with answered_call(backend, limits__max_response_chars=40) as phone:
        phone.speak(line_speech)
        failed = await phone.event("reply.failed")
        assert failed["error"]["code"] == "request_too_long"
        phone.speak(line_speech)
        await phone.event("reply.played")
    said = [text for role, text in turns_of(backend.chats[1]) if role == "assistant"]
    assert said == [*filter(None, [failed["heard"]["text"].strip()])]


async def test_answer_without_a_place_in_the_queue_is_dropped(
    backend: StubBackend, line_speech: Pcm, caplog: pytest.LogCaptureFixture
) -> None:
    """Another agent speaks into the call, which may have one reply."""
    async with answered_call(backend, calls__max_pending_replies=1, calls__barge_in=False) as phone:
        await phone.command("say", text=LONG.text, reply_id="other")
        await phone.event("reply.accepted")
        phone.speak(line_speech)
        await until(lambda: "answer cut" in complaints(caplog))
        await phone.command("interrupt")
        phone.speak(line_speech)
        assert (await phone.event("reply.played"))["reply_id"] != "other"
    assert turns_of(backend.chats[1]) == [("user", "hello\nhello")]


async def test_functions_are_not_offered(backend: StubBackend, line_speech: Pcm, tmp_path: Path) -> None:
    """The agent file names functions and a greeting, which begins the conversation as an instruction."""
    file = tmp_path / "agent.toml"
    file.write_text('instructions = "Sell."\n[phrases]\ngreeting = "Tea or coffee?"\n[[tools]]\nname = "order"\n')
    async with answered_call(backend, agent__file=str(file)) as phone:
        await phone.event("reply.played")
        phone.speak(line_speech)
        await phone.event("reply.played")
    [chat] = backend.chats
    assert "tools" not in chat
    system, user = chat["messages"]
    assert system["content"] == "Sell.\nYou have said: Tea or coffee?"
    assert user == {"role": "user", "content": "hello"}


@pytest.mark.parametrize("loss_db", [20.0, 120.0])
async def test_echo_of_the_answer_is_no_turn(backend: StubBackend, line_speech: Pcm, loss_db: float) -> None:
    """Speech that is as much quieter than the playout as an echo: it interrupts only where no echo is expected."""
    backend.answers.append(ScriptedAnswer(LONG.text[:120], speed=10))
    settings = {"calls__vad_min_level_db": -90.0, "calls__echo_return_loss_db": loss_db}
    async with answered_call(backend, **settings) as phone:
        phone.speak(line_speech)
        await until(lambda: phone.far.played_s > 0.5)
        phone.speak((line_speech * np.float32(0.06)).astype(np.float32))
        if loss_db > 100:
            await phone.event("call.barge_in")
        else:
            await phone.event("reply.played")
            assert phone.far.num_clears == 0
            assert len(backend.recordings) == 1


@pytest.mark.parametrize("stage", ["transcript", "model", "speech"])
async def test_hang_up_in_the_middle_leaves_nothing(backend: StubBackend, line_speech: Pcm, stage: str) -> None:
    backend.transcripts.append(None if stage == "transcript" else "Hello")
    backend.answers.append(ScriptedAnswer(stalls_at=0) if stage == "model" else LONG)
    async with live_server(FakeSpeechEngine(SPOKEN), **flags(backend)) as live:
        async with calling(live) as phone:
            phone.speak(line_speech)
            await until(lambda: bool(backend.chats or (stage == "transcript" and backend.recordings)))
            if stage == "speech":
                await until(lambda: phone.far.played_s > 0.1)
            assert agent_tasks()
        await live.freed()
        await until(lambda: not agent_tasks())


async def test_answered_call_leaves_no_object(backend: StubBackend, line_speech: Pcm) -> None:
    async with live_server(**flags(backend)) as live:

        async def visit() -> None:
            backend.answers += [ScriptedAnswer("A rather long answer, to be cut."), ScriptedAnswer("Yes?")]
            async with calling(live) as phone:
                phone.speak(line_speech)
                await until(lambda: phone.far.played_s > 0)
                phone.speak(line_speech)
                await phone.event("reply.interrupted")
                await phone.event("reply.played")

        await leaves_no_object(live, visit)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, r"calls\.agent = builtin needs agent\.llm_url \(--llm URL\)"),
        ({"agent__llm_url": "http://127.0.0.1:1"}, r"calls\.agent = builtin needs agent\.stt_url \(--stt URL\)"),
    ],
)
async def test_missing_servers_stop_the_start(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        async with live_server(calls__agent="builtin", **given):
            pass


# Devices


def packets_of(speech: Pcm, silence_s: float) -> list[bytes]:
    """Opus packets of 60 ms."""
    encoder = OpusEncoder(OpusSettings(sample_rate=SAMPLE_RATE, packet_ms=60))
    pcm = Resampler(8_000, SAMPLE_RATE).push(speech)
    padded = np.concatenate([pcm, np.zeros(round(silence_s * SAMPLE_RATE), np.float32)])
    return [packet.data for packet in [*encoder.push(padded), *encoder.flush()]]


async def listen(line: ClientConnection, state: str, **fields: str) -> None:
    await line.send(json.dumps({"type": "listen", "state": state, **fields}))


async def test_device_is_answered_in_each_mode(backend: StubBackend, line_speech: Pcm) -> None:
    """By its wake word, by speech whose end is detected, and by a button that is held."""
    backend.transcripts += ["How late is it?", "And where?"]
    async with live_server(**flags(backend, xiaozhi__end_of_speech_delay_ms=50)) as live, device(live) as line:
        await greet(line)
        await listen(line, "detect", text="Hey, you")
        await heard(line, is_tts("stop"))
        await listen(line, "start", mode="auto")
        for packet in packets_of(line_speech, SILENCE_S):
            await line.send(packet)
        await heard(line, is_tts("start"))
        await listen(line, "start", mode="manual")
        await heard(line, is_tts("stop"))
        for packet in packets_of(line_speech, 0.0):
            await line.send(packet)
        assert len(backend.chats) == 2
        await listen(line, "stop")
        sound, _, _ = await heard(line, is_tts("stop"))
        assert sound
    users = [text for role, text in turns_of(backend.chats[-1]) if role == "user"]
    assert "\n".join(users) == "Hey, you\nHow late is it?\nAnd where?"


async def test_device_that_is_muted_in_its_turn_is_answered(backend: StubBackend, line_speech: Pcm) -> None:
    async with live_server(**flags(backend)) as live, device(live) as line:
        await greet(line)
        await listen(line, "start", mode="auto")
        for packet in packets_of(line_speech, 0.0):
            await line.send(packet)
        await listen(line, "stop")
        sound, _, _ = await heard(line, is_tts("stop"))
        assert sound
    assert turns_of(backend.chats[0]) == [("user", "hello")]


async def test_button_held_without_a_word_is_no_turn(backend: StubBackend, line_speech: Pcm) -> None:
    async with live_server(**flags(backend)) as live, device(live) as line:
        await greet(line)
        for state, fields in (("stop", {}), ("start", {"mode": "manual"}), ("stop", {}), ("stop", {}), ("other", {})):
            await listen(line, state, **fields)
        await listen(line, "detect", text="Hello")
        await heard(line, is_tts("stop"))
    assert backend.recordings == []
    assert len(backend.chats) == 1


async def test_turn_of_a_silent_line_is_dated_by_its_audio(
    backend: StubBackend, line_speech: Pcm, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The silent line is found late; the time to the end of the turn counts from the caller's last audio."""
    caplog.set_level(logging.INFO, "voicewire.calls")
    monkeypatch.setattr("realtime.server.TICK_S", 3_600.0)
    late_s = SILENT_LINE_S + 0.6
    async with live_server(FakeSpeechEngine(SPOKEN), **flags(backend)) as live, calling(live) as phone:
        phone.speak(line_speech, silence_s=0.0)
        await asyncio.sleep(late_s)
        await until(lambda: live.speech._tick_connections(now_s()) or bool(backend.recordings))
        await phone.event("reply.played")
    [answered] = [record for record in caplog.records if record.getMessage() == "turn answered"]
    assert 1000 * late_s <= answered.endpointing_ms < answered.first_audio_ms  # type: ignore[attr-defined]


async def test_abort_of_a_device_stops_a_silent_model(backend: StubBackend) -> None:
    backend.answers += [ScriptedAnswer(stalls_at=0), ScriptedAnswer("Yes?")]
    async with live_server(**flags(backend)) as live, device(live) as line:
        await greet(line)
        await listen(line, "detect", text="Hello")
        await until(lambda: len(backend.chats) == 1)
        await line.send(json.dumps({"type": "abort"}))
        await until(lambda: not [name for name in agent_tasks() if name.endswith("answer")])
        await listen(line, "detect", text="Again")
        await heard(line, is_tts("stop"))
    assert turns_of(backend.chats[1]) == [("user", "Hello\nAgain")]


async def test_abort_without_barge_in_answers_the_turn_that_waits(backend: StubBackend, line_speech: Pcm) -> None:
    """The abort ends the answer that plays, and not the next one, which begins at once."""
    backend.answers += [LONG, ScriptedAnswer("Two.")]
    backend.transcripts.append("And two?")
    settings = flags(backend, calls__barge_in=False, xiaozhi__end_of_speech_delay_ms=50)
    async with live_server(FakeSpeechEngine(SPOKEN), **settings) as live, device(live) as line:
        await greet(line)
        await listen(line, "detect", text="One?")
        await heard(line, is_tts("start"))
        await listen(line, "start", mode="realtime")
        for packet in packets_of(line_speech, SILENCE_S):
            await line.send(packet)
        await until(lambda: bool(backend.recordings) and not any(name.endswith("transcript") for name in agent_tasks()))
        assert len(backend.chats) == 1
        await line.send(json.dumps({"type": "abort"}))
        await heard(line, is_tts("stop"))
        sound, _, _ = await heard(line, is_tts("stop"))
        assert sound
    said = {role: [text for one, text in turns_of(backend.chats[1]) if one == role] for role in ("user", "assistant")}
    assert "\n".join(said["user"]) == "One?\nAnd two?"
    assert all(LONG.text.startswith(text) for text in said["assistant"])
