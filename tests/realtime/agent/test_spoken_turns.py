"""Spoken turns of the built-in agent: recorded speech, the real detector, and a recognizer on a socket."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import wave
from io import BytesIO
from typing import Any

import pytest

from sessions.audio.g711 import pcm_to_mulaw
from sessions.audio.pcm import Pcm, pcm_to_s16le
from sessions.audio.resampler import Resampler
from tests.fakes.engine import FakeScript, FakeSpeechEngine
from tests.realtime.agent.agent_client import RATE, agent_client, spoken, talking
from tests.realtime.agent.stub_backend import ScriptedAnswer, StubBackend
from tests.realtime.leftovers import leaves_no_object
from tests.realtime.live_server import live_server, until

PHRASES = ("Sorry, something went wrong. Please try again.", "Sorry, I did not catch that.")
SILENCE = bytes(RATE * 2)
VAD = {"type": "server_vad", "silence_duration_ms": 500}
# Sent at once; generated slowly enough that turns can interrupt it.
LONG = ScriptedAnswer("This is a long answer that goes on and on and on. " * 5, speed=10)


@pytest.fixture(scope="module")
def speech(line_speech: Pcm) -> Pcm:
    return Resampler(8_000, RATE).push(line_speech)


@pytest.fixture(scope="module")
def said(speech: Pcm) -> bytes:
    """Speech, and a second of silence that ends the turn."""
    return pcm_to_s16le(speech) + SILENCE


def flags(backend: StubBackend) -> dict[str, Any]:
    return {"agent__stt_url": backend.url, "agent__llm_model": "m", "agent__retry_pause_s": 0.01}


def replies(chat: dict[str, Any]) -> list[str]:
    """Return what the language model is told that it has said."""
    return [entry["content"] for entry in chat["messages"] if entry["role"] == "assistant"]


async def test_spoken_turn_is_detected_transcribed_answered(backend: StubBackend, said: bytes) -> None:
    backend.transcripts.append("How are you?")
    async with talking(backend.url, **flags(backend)) as client:
        assert client.events[0]["session"]["audio"]["input"]["turn_detection"]["type"] == "server_vad"
        await client.speak(SILENCE + said)
        response = (await client.until("response.done"))["response"]
        assert (response["status"], spoken(response)) == ("completed", "Fine, thank you.")
        assert all(value is not None for value in response["latency"].values())
    started, stopped, committed, created, completed = (
        next(event for event in client.events if event["type"] == kind)
        for kind in (
            "input_audio_buffer.speech_started",
            "input_audio_buffer.speech_stopped",
            "input_audio_buffer.committed",
            "response.created",
            "conversation.item.input_audio_transcription.completed",
        )
    )
    positions = [client.events.index(event) for event in (started, stopped, committed, created, completed)]
    assert positions == sorted(positions)
    assert started["item_id"] == stopped["item_id"] == committed["item_id"] == completed["item_id"]
    assert 500 <= started["audio_start_ms"] <= 1_300
    assert stopped["audio_end_ms"] > started["audio_start_ms"] + 1_000
    assert completed["transcript"] == "How are you?"
    assert backend.chats[0]["messages"][-1] == {"role": "user", "content": "How are you?"}
    with wave.open(BytesIO(backend.recordings[0])) as recording:
        assert (recording.getframerate(), recording.getnchannels()) == (16_000, 1)


async def test_ten_turns_with_interruptions(backend: StubBackend, said: bytes) -> None:
    """Four replies are interrupted by voice while they play; of the others the client reports that all was played."""
    engine = FakeSpeechEngine(FakeScript(ms_per_char=40.0, first_chunk_s=0.005, real_time_factor=0.1))
    item_ids: list[str] = []
    async with talking(backend.url, engine, **flags(backend)) as client:
        await client.configure(turn_detection=VAD)
        for number in range(10):
            is_cut = number % 3 == 0
            backend.transcripts.append(f"Question {number}?")
            backend.answers.append(LONG if is_cut else ScriptedAnswer(f"Answer {number}."))
            if number % 3 != 1:  # else it was asked already, by interrupting
                await client.speak(said)
            item_ids.append((await client.until("response.output_item.added"))["item"]["id"])
            if is_cut:
                await client.until("response.output_audio.delta")
                await client.speak(said)
            response = (await client.until("response.done"))["response"]
            assert response["status"] == ("cancelled" if is_cut else "completed")
            assert (response["status_details"] or {}).get("reason") == ("turn_detected" if is_cut else None)
            if not is_cut:
                await client.truncate(item_ids[-1], 5_000)
        heard = [await client.transcript(item_id) for item_id in item_ids[:9]]
    assert backend.chats[9]["messages"][-1]["content"].endswith("Question 9?")
    assert replies(backend.chats[9]) == [*filter(None, heard)]
    for number, text in enumerate(heard):
        assert text == f"Answer {number}." if number % 3 else LONG.text.startswith(text)


async def test_voice_cuts_what_still_plays_after_its_end(backend: StubBackend, said: bytes) -> None:
    """The reply was sent completely, and its playback is cut: the conversation keeps what was played."""
    backend.answers += [LONG, ScriptedAnswer("Yes?")]
    engine = FakeSpeechEngine(FakeScript(ms_per_char=30.0, first_chunk_s=0.001, real_time_factor=0.001))
    async with talking(backend.url, engine, **flags(backend)) as client:
        await client.configure(turn_detection=VAD)
        assert (await client.ask("Tell me"))["status"] == "completed"
        await client.speak(said)
        await client.until("response.done")
    # Where nothing was heard, the two turns of the user are one message.
    assert backend.chats[-1]["messages"][-1]["content"].endswith("hello")
    assert len("".join(replies(backend.chats[-1]))) < len(LONG.text) / 2


async def test_manual_turns(backend: StubBackend, said: bytes) -> None:
    backend.transcripts += ["First.", "Second."]
    async with talking(backend.url, **flags(backend)) as client:
        await client.configure(turn_detection=None)
        await client.speak(said)
        await client.connection.input_audio_buffer.clear()
        await client.until("input_audio_buffer.cleared")
        await client.connection.input_audio_buffer.commit()
        assert (await client.until("error"))["error"]["code"] == "input_audio_buffer_commit_empty"
        for text in ("First.", "Second."):
            await client.speak(said)
            await client.connection.input_audio_buffer.commit()
            await client.connection.response.create()
            assert (await client.until("response.done"))["response"]["status"] == "completed"
            assert backend.chats[-1]["messages"][-1]["content"] == text
        assert "input_audio_buffer.speech_started" not in client.kinds
        with wave.open(BytesIO(backend.recordings[0])) as recording:
            assert abs(recording.getnframes() - len(said) // 3) <= 1


async def test_phone_formats_are_accepted(backend: StubBackend, line_speech: Pcm) -> None:
    quiet = bytes([255]) * 8_000
    data = pcm_to_mulaw(line_speech) + quiet
    async with talking(backend.url, **flags(backend)) as client:
        await client.configure(format={"type": "audio/pcmu"}, turn_detection=VAD)
        for start in range(0, len(data), 800):
            audio = base64.b64encode(data[start : start + 800]).decode()
            await client.connection.input_audio_buffer.append(audio=audio)
        assert (await client.until("response.done"))["response"]["status"] == "completed"


@pytest.mark.parametrize(
    ("transcript", "code", "phrase"),
    [([500, 500], "stt_failed", PHRASES[0]), ([None], "stt_failed", PHRASES[0]), ([" "], None, PHRASES[1])],
    ids=["status", "stall", "nothing understood"],
)
async def test_missing_transcript_is_reported_and_spoken(
    backend: StubBackend, said: bytes, caplog, transcript: list[str | int | None], code: str | None, phrase: str
) -> None:
    backend.transcripts += transcript
    async with talking(backend.url, agent__stt_timeout_s=0.3, **flags(backend)) as client:
        await client.configure(turn_detection=VAD)
        await client.speak(said)
        response = (await client.until("response.done"))["response"]
        assert spoken(response) == phrase
        assert response["status"] == ("completed" if code is None else "failed")
        kind = "conversation.item.input_audio_transcription." + ("completed" if code is None else "failed")
        assert kind in client.kinds
        errors = [event["error"]["code"] for event in client.events if event["type"] == "error"]
        assert errors == ([] if code is None else [code])
        await client.speak(said)
        assert (await client.until("response.done"))["response"]["status"] == "completed"


async def test_recognizer_is_tried_again(backend: StubBackend, said: bytes) -> None:
    backend.transcripts += [503, "Hello there."]
    async with talking(backend.url, **flags(backend)) as client:
        await client.configure(turn_detection=VAD)
        await client.speak(said)
        assert (await client.until("response.done"))["response"]["status"] == "completed"
    assert len(backend.recordings) == 2


async def test_options_turn_answers_and_interruptions_off(backend: StubBackend, said: bytes) -> None:
    engine = FakeSpeechEngine(FakeScript(ms_per_char=40.0, first_chunk_s=0.005, real_time_factor=0.1))
    backend.answers += [LONG, ScriptedAnswer("Yes?")]
    async with talking(backend.url, engine, **flags(backend)) as client:
        await client.configure(turn_detection=VAD | {"create_response": False})
        await client.speak(said)
        await client.until("conversation.item.input_audio_transcription.completed")
        assert "response.created" not in client.kinds
        await client.configure(turn_detection=VAD | {"interrupt_response": False})
        await client.connection.response.create()
        await client.until("response.output_audio.delta")
        await client.speak(said)
        statuses = [(await client.until("response.done"))["response"]["status"] for _ in range(2)]
        assert statuses == ["completed", "completed"], "the turn within the reply is answered after it"


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"turn_detection": {"type": "magic"}}, "audio.input.turn_detection"),
        ({"turn_detection": VAD | {"threshold": 2}}, "audio.input.turn_detection.threshold"),
        ({"turn_detection": VAD | {"silence_duration_ms": 5}}, "audio.input.turn_detection.silence_duration_ms"),
        ({"format": {"type": "audio/opus"}}, "audio.input.format.type"),
        ({"format": {"type": "audio/pcm", "rate": 48_000}}, "audio.input.format.rate"),
    ],
)
async def test_wrong_options_change_nothing(backend: StubBackend, given: dict[str, Any], param: str) -> None:
    async with talking(backend.url, **flags(backend)) as client:
        event = {"type": "session.update", "session": {"type": "realtime", "audio": {"input": given}}}
        await client.connection.send_raw(json.dumps(event))
        assert (await client.until("error"))["error"]["param"] == param
        assert (await client.ask("Hello"))["status"] == "completed"


async def test_wrong_audio_is_named(backend: StubBackend) -> None:
    async with talking(backend.url, agent__max_turn_s=1, **flags(backend)) as client:
        await client.configure(turn_detection=None)
        for audio, message in (("%%%", "base64"), ("AAAA", "3 bytes"), ("A" * 80_000, "at most 1000")):
            await client.connection.input_audio_buffer.append(audio=audio)
            assert message in (await client.until("error"))["error"]["message"]


async def test_long_turn_is_ended(backend: StubBackend, speech: Pcm) -> None:
    async with talking(backend.url, agent__max_turn_s=1, **flags(backend)) as client:
        await client.configure(turn_detection=VAD | {"create_response": False})
        for _ in range(4):
            await client.speak(pcm_to_s16le(speech[: RATE // 4]))
            await asyncio.sleep(0.1)
        await client.speak(pcm_to_s16le(speech[RATE // 4 : RATE]))
        await client.until("input_audio_buffer.committed")


async def test_history_of_random_interruptions(backend: StubBackend, said: bytes) -> None:
    """Interruptions by voice at random moments; the client reports what it has played, or leaves it to the server."""
    rng = random.Random(7)
    engine = FakeSpeechEngine(FakeScript(ms_per_char=40.0, first_chunk_s=0.001, real_time_factor=0.01))
    heard: list[str] = []
    async with talking(backend.url, engine, agent__max_history_chars=1_000_000, **flags(backend)) as client:
        await client.configure(turn_detection=VAD | {"create_response": False})
        for number in range(8):
            backend.answers.append(LONG)
            await client.write(f"Question {number}?")
            item = (await client.until("response.output_item.added"))["item"]
            for _ in range(rng.randrange(1, 30)):
                if (await client.next())["type"] == "response.done":
                    break
            await client.speak(said)
            await client.until("input_audio_buffer.committed")
            if rng.random() < 0.5:
                await client.truncate(item["id"], rng.randrange(0, 1_500))
            heard.append(await client.transcript(item["id"]))
            assert replies(backend.chats[-1]) == [*filter(None, heard[:-1])]
    assert len(set(heard)) > 1, "cut at several places"


async def test_nothing_is_left_of_a_speaker_that_goes(backend: StubBackend, said: bytes) -> None:
    backend.transcripts.append(None)
    async with live_server(agent__llm_url=backend.url, **flags(backend)) as live:
        async with agent_client(live) as client:
            await client.speak(said)
            await client.until("input_audio_buffer.committed")
        await live.freed()
        await until(lambda: not [task for task in asyncio.all_tasks() if task.get_name().startswith("voicewire agent")])


async def test_a_conversation_leaves_no_object(backend: StubBackend, said: bytes) -> None:
    async with live_server(agent__llm_url=backend.url, **flags(backend)) as live:

        async def visit() -> None:
            async with agent_client(live) as client:
                await client.configure(turn_detection=VAD)
                await client.speak(said)
                await client.until("response.done")
                await client.ask("And typed?")

        await leaves_no_object(live, visit)
