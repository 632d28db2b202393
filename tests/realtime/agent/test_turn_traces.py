"""Traces of turns at a real OTLP receiver: recognizer, language model and reply apart, in the trace of the caller."""

from __future__ import annotations

import pytest

from sessions.audio.pcm import Pcm, pcm_to_s16le
from sessions.audio.resampler import Resampler
from tests.realtime.agent.agent_client import RATE, agent_client, spoken
from tests.realtime.agent.stub_backend import ScriptedAnswer, StubBackend
from tests.realtime.agent.test_answered_calls import calling, flags
from tests.realtime.live_server import live_server
from tests.realtime.otlp_receiver import OtlpReceiver, attributes_of, otlp_receiver

FAILED = "Sorry, something went wrong. Please try again."


def turns_of(collector: OtlpReceiver) -> list[object]:
    return [span for span in collector.spans if span.name == "turn"]


def check_parts(collector: OtlpReceiver, turn: object, names: set[str]) -> None:
    """All parts begin within the turn, and the reply sounds at its end."""
    parts = collector.parts_of(turn)
    assert parts.keys() == names
    assert {part.trace_id for part in parts.values()} == {turn.trace_id}
    for part in parts.values():
        assert turn.start_time_unix_nano <= part.start_time_unix_nano <= turn.end_time_unix_nano
    sent = collector.parts_of(parts["reply"])["first_packet"]
    assert abs(sent.end_time_unix_nano - turn.end_time_unix_nano) < 1e9
    assert parts["reply"].start_time_unix_nano >= parts["llm"].start_time_unix_nano


async def test_typed_turn_is_one_trace_without_text(backend: StubBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    backend.answers.append(ScriptedAnswer("Zebras whisper quietly."))
    with otlp_receiver(monkeypatch) as collector:
        async with live_server(agent__llm_url=backend.url) as live, agent_client(live) as client:
            latency = (await client.ask("Are giraffes silent?"))["latency"]
        [turn] = turns_of(collector)
        check_parts(collector, turn, {"llm", "reply"})
        given = attributes_of(collector.parts_of(turn)["llm"])
        assert given["voicewire.first_token_ms"] == latency["llm_first_token_ms"]
        assert (turn.end_time_unix_nano - turn.start_time_unix_nano) / 1e6 == pytest.approx(
            latency["first_audio_ms"], abs=20
        )
        for word in (b"Zebras", b"quietly", b"giraffes", backend.url.encode()):
            assert not any(word in body for body in collector.bodies)


async def test_spoken_turns_have_their_recognizer_and_model_apart(
    backend: StubBackend, line_speech: Pcm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second is not transcribed, and a phrase is spoken."""
    backend.transcripts += ["How are you?", 400]
    settings = {"agent__llm_url": backend.url, "agent__stt_url": backend.url, "agent__llm_model": "m"}
    with otlp_receiver(monkeypatch) as collector:
        async with live_server(**settings) as live, agent_client(live) as client:
            said = pcm_to_s16le(Resampler(8_000, RATE).push(line_speech)) + bytes(RATE * 2)
            for answer in ("Fine, thank you.", FAILED):
                await client.speak(said)
                assert spoken((await client.until("response.done"))["response"]) == answer
        first, second = turns_of(collector)
        assert first.trace_id != second.trace_id
        check_parts(collector, first, {"endpointing", "stt", "llm", "reply"})
        parts = collector.parts_of(second)
        assert parts.keys() == {"endpointing", "stt", "reply"}
        assert attributes_of(parts["stt"])["error.type"] == "stt_failed"


async def test_failed_model_is_an_error_of_its_span(backend: StubBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    backend.answers.append(ScriptedAnswer(status=401))
    with otlp_receiver(monkeypatch) as collector:
        async with live_server(agent__llm_url=backend.url) as live, agent_client(live) as client:
            assert spoken(await client.ask("Hello")) == FAILED
        [turn] = turns_of(collector)
        model = collector.parts_of(turn)["llm"]
        assert (attributes_of(model), model.status.code) == ({"error.type": "llm_failed"}, 2)


async def test_turn_that_is_cut_off_ends(backend: StubBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    backend.answers.append(ScriptedAnswer(stalls_at=0))
    with otlp_receiver(monkeypatch) as collector:
        async with live_server(agent__llm_url=backend.url) as live, agent_client(live) as client:
            await client.write("Hello")
            await client.until("response.created")
        [turn] = turns_of(collector)
        assert "reply" not in collector.parts_of(turn)


async def test_turns_of_a_call_are_in_its_trace(
    backend: StubBackend, line_speech: Pcm, monkeypatch: pytest.MonkeyPatch
) -> None:
    with otlp_receiver(monkeypatch) as collector:
        async with live_server(**flags(backend)) as live, calling(live) as phone:
            phone.speak(line_speech)
            await phone.event("reply.played")
        [turn] = turns_of(collector)
        check_parts(collector, turn, {"endpointing", "stt", "llm", "reply"})
