"""CosyVoice3 behind the server, and on every wire."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from realtime.cli import main
from realtime.protocol import events as ev
from sessions.audio.wav import wav_file
from tests.fakes import tiny_onnx
from tests.fakes.cosyvoice3_checkpoint import write_cosyvoice3
from tests.fakes.cosyvoice3_voices import write_saved_voices
from tests.realtime.calls.test_sockets import KEY, PUBLIC, SIGNED, TOKEN, told, twilio_call
from tests.realtime.calls.test_sockets import dial as dial_agent
from tests.realtime.dialects.vendor_clients import CLIENTS, dial, hear_first_audio, hear_to_the_close, send, turn
from tests.realtime.live_server import LiveServer, hear, live_server, next_of, speak, until
from tests.sessions.audio.signals import speech_like

pytestmark = pytest.mark.usefixtures("quick_engines")

SPEECH = speech_like(48_000, 16_000, seed=1)
TEXT = "Hello there, how are you today?"
TOKEN_BYTES = 2 * 960


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_cosyvoice3(tmp_path_factory.mktemp("checkpoint") / "cosyvoice3")
    tiny_onnx.write_encoders(folder)
    write_saved_voices(folder, "Anna", "ben")
    return folder


@pytest.fixture
async def live(checkpoint: Path, tmp_path: Path) -> AsyncIterator[LiveServer]:
    from engine.launch import create_engine

    engine = create_engine(checkpoint, process=False, kv_memory_mb=64, lazy_graph_capture=True)
    async with live_server(engine, voices__folder=str(tmp_path)) as server:
        yield server


def form(**fields: str) -> list[tuple[str, tuple[str | None, str | bytes] | tuple[str, bytes, str]]]:
    parts: list[tuple[str, tuple[str | None, str | bytes] | tuple[str, bytes, str]]]
    parts = [(name, (None, value)) for name, value in fields.items()]
    return [*parts, ("audio_sample", ("a.wav", wav_file(SPEECH, 16_000), "audio/wav"))]


async def test_http_speaks_in_tokens_of_40_ms(live: LiveServer) -> None:
    body = {"input": TEXT, "voice": "anna", "response_format": "pcm", "max_frames": 30, "seed": 1}
    async with live.http() as http:
        answer = await http.post("/v1/audio/speech", json=body, timeout=30)
        again = await http.post("/v1/audio/speech", json=body, timeout=30)
        other = await http.post("/v1/audio/speech", json=body | {"voice": "ben"}, timeout=30)
    assert answer.status_code == 200, answer.text
    assert len(answer.content) % TOKEN_BYTES == 0
    assert np.abs(np.frombuffer(answer.content, "<i2")).max() > 300
    assert again.content == answer.content
    assert other.content != answer.content


async def test_its_own_voices_and_cloned_ones_are_one_model(live: LiveServer) -> None:
    body = {"input": TEXT, "voice": "anna", "max_frames": 4}
    async with live.http() as http:
        for task, status in (("CustomVoice", 200), ("Base", 200), ("VoiceDesign", 400)):
            answer = await http.post("/v1/audio/speech", json=body | {"task_type": task}, timeout=30)
            assert answer.status_code == status, answer.text


async def test_unknown_instruction_is_rejected_with_known_ones(live: LiveServer) -> None:
    body = {"input": TEXT, "voice": "anna", "response_format": "pcm", "max_frames": 20, "seed": 1}
    async with live.http() as http:
        plain = await http.post("/v1/audio/speech", json=body, timeout=30)
        happy = await http.post("/v1/audio/speech", json=body | {"instructions": "happy"}, timeout=30)
        refused = await http.post("/v1/audio/speech", json=body | {"instructions": "like a pirate"}, timeout=30)
    assert happy.status_code == 200
    assert happy.content != plain.content
    assert refused.status_code == 400
    assert "'like a pirate', which the model does not know; known: cantonese" in refused.text


@pytest.mark.parametrize(
    "wish", [{"repetition_penalty": 1.05}, {"top_k": 500}, {"subtalker_top_k": 5}, {"chunk_frames": [2]}]
)
async def test_meaningless_option_is_refused_by_name(live: LiveServer, wish: dict[str, object]) -> None:
    async with live.http() as http:
        answer = await http.post("/v1/audio/speech", json={"input": TEXT, "voice": "anna"} | wish, timeout=30)
    assert answer.status_code == 400
    (name,) = wish
    assert answer.json()["error"]["param"] == name.replace("subtalker", "predictor")


async def test_uploaded_voice_equals_its_recording(live: LiveServer) -> None:
    reference = f"data:audio/wav;base64,{base64.b64encode(wav_file(SPEECH, 16_000)).decode()}"
    asked = {"input": TEXT, "response_format": "pcm", "max_frames": 16, "seed": 3}
    async with live.http() as http:
        told = await http.post("/v1/audio/voices", files=form(name="zoe", consent="yes", ref_text="hello"), timeout=30)
        assert told.status_code == 200, told.text
        by_name = await http.post("/v1/audio/speech", json=asked | {"voice": "zoe"}, timeout=30)
        by_recording = asked | {"ref_audio": reference, "ref_text": "hello"}
        assert (await http.post("/v1/audio/speech", json=by_recording, timeout=30)).content == by_name.content
        without_words = asked | {"voice": "zoe", "x_vector_only_mode": True}
        sound_alone = await http.post("/v1/audio/speech", json=without_words, timeout=30)
        assert sound_alone.content != by_name.content
        by_recording = asked | {"ref_audio": reference, "x_vector_only_mode": True}
        assert (await http.post("/v1/audio/speech", json=by_recording, timeout=30)).content == sound_alone.content


@pytest.mark.parametrize(("num_samples", "told"), [(8_000, "at least 1 s"), (16_000 * 31, "30 s")])
async def test_a_recording_too_short_or_too_long_is_refused(live: LiveServer, num_samples: int, told: str) -> None:
    parts = [("name", (None, "zoe")), ("consent", (None, "yes"))]
    wav = wav_file(np.tile(SPEECH, 11)[:num_samples], 16_000)
    async with live.http() as http:
        answer = await http.post("/v1/audio/voices", files=[*parts, ("audio_sample", ("a", wav, "audio/wav"))])
    assert answer.status_code == 400
    assert told in answer.text


async def test_a_silent_recording_is_refused(live: LiveServer) -> None:
    parts = [("name", (None, "zoe")), ("consent", (None, "yes"))]
    wav = wav_file(np.zeros(32_000, np.float32), 16_000)
    async with live.http() as http:
        answer = await http.post("/v1/audio/voices", files=[*parts, ("audio_sample", ("a", wav, "audio/wav"))])
    assert answer.status_code == 400
    assert "audio is silent" in answer.text


async def test_the_native_socket_speaks_live_text(live: LiveServer) -> None:
    async with live.session() as client:
        settings = ev.NativeSpeechSettings(voice="anna", pace="burst", seed=1, max_frames=60)
        await client.send(ev.ResponseCreate(response_id="r", settings=settings))
        for word in TEXT.split():
            await client.send(ev.TextAppend(response_id="r", text=f"{word} "))
        await client.send(ev.TextEnd(response_id="r"))
        spoken = await hear(client, "r")
        assert spoken.done.status == "completed"
        assert spoken.audio
        two = await speak(client, f"{TEXT} " * 8, response_id="s", voice="anna", max_frames=20)
        assert two.done.status == "completed"


def test_doctor_reads_the_folder(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "--model", str(checkpoint)])
    told = next(line for line in capsys.readouterr().out.splitlines() if "checkpoint" in line)
    assert told.startswith("ok")
    assert "cosyvoice3; talker (llm.pt)" in told
    assert "voices anna, ben" in told
    assert "takes instructions" in told


def test_doctor_lists_what_encoders_add(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in checkpoint.iterdir():
        if path.suffix != ".onnx":
            (tmp_path / path.name).symlink_to(path)
    main(["doctor", "--model", str(tmp_path)])
    told = next(line for line in capsys.readouterr().out.splitlines() if "checkpoint" in line)
    assert told.startswith("ok")
    assert "no speech_tokenizer_v3.onnx and no campplus.onnx: recordings cannot be listened to" in told


LONG_TEXTS = {
    "Thai": "วันนี้อากาศดีมากเราจะไปเดินเล่นที่สวนสาธารณะกันไหมครับ " * 6,
    "Tamil": "இன்று வானிலை மிகவும் நன்றாக உள்ளது பூங்காவுக்குச் செல்வோம் " * 6,
    "emoji": "so 😀👍🏽👩‍👩‍👧" * 24,
}


@pytest.mark.parametrize("text", LONG_TEXTS.values(), ids=LONG_TEXTS)
async def test_long_text_of_token_rich_script_is_split_into_segments(live: LiveServer, text: str) -> None:
    """The tiny vocabulary knows next to none of them: a token a byte, and a segment takes 200."""
    settings = ev.NativeSpeechSettings(voice="anna", pace="burst", seed=1, max_frames=3, text_layout="full")
    async with live.session() as client:
        await client.send(ev.ResponseCreate(response_id="r", settings=settings))
        for at in range(0, len(text), 7):
            await client.send(ev.TextAppend(response_id="r", text=text[at : at + 7]))
        await client.send(ev.TextEnd(response_id="r"))
        spoken = await hear(client, "r")
    assert spoken.done.status == "completed", spoken.done
    assert spoken.audio


def test_say_speaks_in_a_stored_voice(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    recording, path = tmp_path / "zoe.wav", tmp_path / "hello.wav"
    recording.write_bytes(wav_file(SPEECH, 16_000))
    model = ["--model", str(checkpoint)]
    assert main(["voices", "add", *model, "--consent", "yes", "--transcript", "hello", "zoe", str(recording)]) == 0
    assert main(["say", TEXT, *model, "--voice", "zoe", "-o", str(path)]) == 0
    assert path.stat().st_size > 10 * TOKEN_BYTES


WIRES_TEXT = "Hello there, how are you?"
LONG = "The quick brown fox jumps over the lazy dog. " * 20
# One speech token: with live text a random model ends where it likes.
LEAST_BYTES = 2 * 960
FLAGS = {"calls__twilio_auth_token": TOKEN, "calls__public_url": PUBLIC, "calls__default_key_name": "agent"}


@pytest.fixture
async def wires_live(checkpoint: Path) -> AsyncIterator[LiveServer]:
    from engine.launch import create_engine

    engine = create_engine(checkpoint, process=False, kv_memory_mb=64, lazy_graph_capture=True)
    async with live_server(engine, auth__api_keys=f"agent:{KEY}", **FLAGS) as server:
        yield server
        await freed(server)


async def freed(wires_live: LiveServer) -> None:
    """Nothing is held for anybody: free + held = total in both stages."""
    await until(lambda: wires_live.speech.num_connections == 0)
    await until(lambda: wires_live.engine.stats().num_running == 0)
    await until(lambda: wires_live.engine.stats().slots_free == wires_live.engine.stats().slots_total)
    assert wires_live.engine.stats().num_waiting == 0
    assert wires_live.speech.num_active_responses == 0


async def test_every_vendors_wire_speaks(wires_live: LiveServer) -> None:
    for client in CLIENTS.values():
        async with dial(wires_live, client) as socket:
            assert len(await turn(socket, client, "t1", WIRES_TEXT)) >= LEAST_BYTES, client.name
            if client.one_turn:
                assert (await hear_to_the_close(socket, client))[0] == 1000, client.name


async def test_client_disconnect_in_mid_response_leaves_nothing(wires_live: LiveServer) -> None:
    for client in list(CLIENTS.values())[:3]:
        async with dial(wires_live, client) as socket:
            await send(socket, client, client.say("t1", LONG))
            await hear_first_audio(socket, client)
        await freed(wires_live)


async def test_an_agent_speaks_into_a_call(wires_live: LiveServer) -> None:
    async with (
        dial_agent(wires_live, "/v1/calls", Authorization=f"Bearer {KEY}") as agent,
        twilio_call(wires_live, **SIGNED) as far,
    ):
        call_id = (await told(agent, "call.connected"))["call_id"]
        await agent.send(json.dumps({"type": "say", "call_id": call_id, "text": "Hello."}))
        played = await told(agent, "reply.played")
        assert played["confirmed"]
        assert far.played_s == pytest.approx(played["played_ms"] / 1000, abs=0.02)
        assert far.played_s > 0.1
        await agent.send(json.dumps({"type": "hang_up", "call_id": call_id}))
        assert (await told(agent, "call.hung_up"))["reason"] == "agent"


async def test_an_interruption_ends_at_once_and_the_next_reply_speaks(wires_live: LiveServer) -> None:
    async with wires_live.session(api_key=KEY) as client:
        settings = ev.NativeSpeechSettings(voice="anna")
        await client.send(ev.ResponseCreate(response_id="r", settings=settings, text=LONG, end=True))
        await next_of(client, ev.AudioMessage)
        await client.send(ev.ResponseCancel(response_id="r"))
        done = await next_of(client, ev.ResponseDone)
        assert (done.response_id, done.status) == ("r", "cancelled")
        again = await speak(client, WIRES_TEXT, response_id="s", voice="anna")
        assert again.done.status == "completed"
        assert {message.response for message in again.audio} == {again.done.response}


async def test_voices_side_by_side_sound_as_alone(wires_live: LiveServer) -> None:
    """As long, at least: calls of other shapes round elsewhere."""

    async def say(voice: str) -> int:
        async with wires_live.session(api_key=KEY) as client:
            spoken = await speak(client, WIRES_TEXT, voice=voice, seed=4, max_frames=40)
            assert spoken.done.status == "completed"
            return spoken.done.audio_samples

    alone = [await say(voice) for voice in ("anna", "ben")]
    assert await asyncio.gather(*map(say, ("anna", "ben"))) == alone
