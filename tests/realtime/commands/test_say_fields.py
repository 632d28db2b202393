"""Style, sampling and voices that come along: by an engine here, by a server, and both outputs at once."""

from __future__ import annotations

import io
import json
import os
import sys
import wave
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from engine.api import ClonedVoice
from realtime.cli import main, parser_for
from realtime.commands import say
from sessions.audio.wav import wav_file
from tests.fakes.engine import FakeScript, FakeSpeechEngine
from tests.realtime.live_server import EMBEDDING_SIZE, LiveServer, cloning_engine, live_server
from tests.sessions.audio.signals import tone

TEXT = "Hello there, how are you today?"
SAMPLING = ("--sampling", "temperature=0.5", "--sampling", "top_k=20", "--sampling", "do_sample=true")


@pytest.fixture
def base_engine(monkeypatch: pytest.MonkeyPatch) -> FakeSpeechEngine:
    engine = cloning_engine(takes_instruct=False)
    monkeypatch.setitem(sys.modules, "engine.launch", SimpleNamespace(create_engine=lambda model, **settings: engine))
    return engine


@pytest.fixture
def recording(tmp_path: Path) -> str:
    path = tmp_path / "ann.wav"
    path.write_bytes(wav_file(tone(1.5, 16_000), 16_000))
    return str(path)


@pytest.fixture
def embedding(tmp_path: Path) -> str:
    path = tmp_path / "ann.json"
    path.write_text(json.dumps([0.5] * EMBEDDING_SIZE))
    return str(path)


@pytest.fixture
def player(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts a player of this shell script first in the path; it writes into the file."""
    played = tmp_path / "played"

    def install(script: str) -> Path:
        program = tmp_path / "aplay"
        program.write_text(f"#!/bin/sh\n{script} > {played}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        return played

    return install


async def say_through(live: LiveServer, *arguments: str) -> int:
    """The command in this event loop, where a fake engine is at hand."""
    args = parser_for("say", say).parse_args(["say", TEXT, "--url", live.url, "--seed", "5", *arguments])  # type: ignore[arg-type]
    return await say.say_on(args)


def frames_of(path: Path) -> bytes:
    with wave.open(str(path)) as file:
        return file.readframes(file.getnframes())


def test_engine_gets_style_and_sampling(fake_engine: FakeSpeechEngine, tmp_path: Path) -> None:
    output = str(tmp_path / "x.wav")
    assert main(["say", TEXT, "-o", output, "--instruct", "Softly.", *SAMPLING, "--seed", "5"]) == 0
    [request] = fake_engine.requests
    sampling = request.sampling
    assert request.instruct == "Softly."
    assert (sampling.temperature, sampling.top_k, sampling.do_sample, sampling.seed) == (0.5, 20, True, 5)


def test_engine_gets_voice_of_recording(
    base_engine: FakeSpeechEngine, tmp_path: Path, recording: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--ref-audio", recording, "--ref-text", "Hello.", "--voice", "ada"]
    assert main(["say", TEXT, "-o", str(tmp_path / "x.wav"), *given]) == 0
    assert base_engine.samples[0].transcript == "Hello."
    assert isinstance(base_engine.requests[0].voice, ClonedVoice)
    assert "the named one is left out" in capsys.readouterr().err


def test_engine_gets_voice_of_embedding(base_engine: FakeSpeechEngine, tmp_path: Path, embedding: str) -> None:
    assert main(["say", TEXT, "-o", str(tmp_path / "x.wav"), "--speaker-embedding", embedding]) == 0
    voice = base_engine.requests[0].voice
    assert isinstance(voice, ClonedVoice)
    assert np.frombuffer(voice.embedding, np.float32).tolist() == [0.5] * EMBEDDING_SIZE


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sampling", "warmth=1"], "sampling must be KEY=VALUE with a key of do_sample, temperature"),
        (["--sampling", "temperature"], "temperature is ''"),
        (["--sampling", "temperature=warm"], "temperature is 'warm'"),
        (["--sampling", "temperature=nan"], "temperature must be 0.0 to 2.0, is nan"),
        (["--sampling", "temperature=2.5"], "temperature must be 0.0 to 2.0, is 2.5"),
        (["--sampling", "top_k=1.5"], "top_k is '1.5'"),
        (["--sampling", "top_p=0"], "top_p must be 1e-06 to 1.0, is 0.0"),
        (["--instruct", "Softly."], "instruct is given; a fake base does not take instructions"),
        (["--ref-audio", "nowhere.wav"], "nowhere.wav"),
        (["--ref-audio", "TEXT"], "ref_audio: audio is neither of wav"),
        (["--ref-audio", "LONG"], "ref_audio: audio is longer than 30 s"),
        (["--ref-audio", "SHORT"], "ref_audio: audio is 0.50 s long, at least 1 s needed"),
        (["--ref-audio", "HUGE"], "has more than 10485760 bytes"),
        (["--ref-text", "Hello."], "ref_text is there without ref_audio"),
        (["--ref-audio", "WAV", "--speaker-embedding", "FEW"], "of ref_audio or of speaker_embedding, not of both"),
        (["--speaker-embedding", "nowhere.json"], "nowhere.json"),
        (["--speaker-embedding", "FEW"], "speaker_embedding has 3 numbers, a fake base takes 8"),
        (["--speaker-embedding", "NAN"], "is no JSON list of numbers"),
        (["--speaker-embedding", "INFINITE"], "is no JSON list of numbers"),
        (["--speaker-embedding", "LARGE"], "speaker_embedding holds what is no finite number"),
        (["--speaker-embedding", "WAV"], "is no JSON list of numbers"),
    ],
)
def test_bad_field_is_named_and_nothing_is_written(
    base_engine: FakeSpeechEngine,
    tmp_path: Path,
    recording: str,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    contents = {
        "TEXT": b"this is no recording",
        "LONG": wav_file(tone(31.0, 8_000), 8_000),
        "SHORT": wav_file(tone(0.5, 8_000), 8_000),
        "HUGE": bytes(10_485_761),
        "FEW": b"[1, 2, 3]",
        "NAN": json.dumps([float("nan")] * EMBEDDING_SIZE).encode(),
        "INFINITE": b"[1e999]",
        "LARGE": json.dumps([1e39] * EMBEDDING_SIZE).encode(),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    given = [recording if word == "WAV" else str(tmp_path / word) if word in contents else word for word in arguments]
    assert main(["say", TEXT, "-o", str(tmp_path / "x.wav"), *given]) == 1
    assert words in capsys.readouterr().err
    assert not (tmp_path / "x.wav").exists()
    assert not base_engine.requests


def test_model_without_cloning_refuses_a_voice_by_field(
    fake_engine: FakeSpeechEngine, tmp_path: Path, recording: str, embedding: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for field, value in (("ref_audio", recording), ("speaker_embedding", embedding)):
        option = f"--{field.replace('_', '-')}"
        assert main(["say", TEXT, "-o", str(tmp_path / "x.wav"), option, value]) == 1
        assert f"voicewire say: {field}: fake does not" in capsys.readouterr().err


async def test_server_gets_style_and_sampling(tmp_path: Path) -> None:
    async with live_server() as live:
        assert await say_through(live, "-o", str(tmp_path / "x.wav"), "--instruct", "Softly.", *SAMPLING) == 0
        [request] = live.engine.requests
        assert (request.instruct, request.sampling.temperature, request.sampling.top_k) == ("Softly.", 0.5, 20)
        assert request.sampling.seed == 5


async def test_server_gets_voice_of_recording(tmp_path: Path, recording: str) -> None:
    output = tmp_path / "x.wav"
    given = ("--ref-audio", recording, "--ref-text", "Hello.", "--language", "de", *SAMPLING)
    async with live_server(cloning_engine()) as live:
        assert await say_through(live, "-o", str(output), *given) == 0
        [request] = live.engine.requests
        assert live.engine.samples[0].transcript == "Hello."
        assert isinstance(request.voice, ClonedVoice)
        assert (request.language, request.sampling.temperature, request.sampling.seed) == ("de", 0.5, 5)
        assert await say_through(live, "-o", str(tmp_path / "y.wav"), "--language", "de", *SAMPLING) == 0
    assert frames_of(output)


async def test_server_gets_voice_of_embedding(
    tmp_path: Path, embedding: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with live_server(cloning_engine()) as live:
        given = ("-o", str(tmp_path / "x.wav"), "--speaker-embedding", embedding, "--voice", "ada")
        assert await say_through(live, *given) == 0
        assert isinstance(live.engine.requests[0].voice, ClonedVoice)
    told = capsys.readouterr().err
    assert "the named one is left out" in told
    assert "completed: " in told


async def test_markup_goes_along_with_a_voice(tmp_path: Path, embedding: str) -> None:
    async with live_server(cloning_engine()) as live:
        given = ("--url", live.url, "-o", str(tmp_path / "x.wav"), "--speaker-embedding", embedding, "--ssml")
        given = (*given, "--speaker", "Ann=ben")
        args = parser_for("say", say).parse_args(["say", "<speak>Hello.\nAnn: Hi.</speak>", "--seed", "5", *given])  # type: ignore[arg-type]
        assert await say.say_on(args) == 0
        assert [request.text.strip() for request in live.engine.requests] == ["Hello.", "Hi."]
        assert live.engine.requests[1].voice == "ben"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--ref-text", "Hello."], "ref_text is there without ref_audio"),
        (["--ref-audio", "WAV"], "ref_audio: fake does not listen to recordings"),
        (["--speaker-embedding", "JSON"], "speaker_embedding: fake does not clone voices"),
    ],
)
async def test_server_refusal_names_the_field(
    tmp_path: Path, recording: str, embedding: str, arguments: list[str], words: str
) -> None:
    given = [{"WAV": recording, "JSON": embedding}.get(word, word) for word in arguments]
    async with live_server() as live:
        with pytest.raises(OSError, match=words):
            await say_through(live, "-o", str(tmp_path / "x.wav"), *given)
    assert not (tmp_path / "x.wav").exists()


async def test_lost_server_fails_the_posted_speech(tmp_path: Path, embedding: str) -> None:
    broken = FakeScript(fail_at_frame=20, first_chunk_s=0.0, real_time_factor=0.02)
    engine = cloning_engine()
    engine.script = broken
    async with live_server(engine) as live:
        with pytest.raises(OSError, match="ended the speech early: IncompleteRead"):
            await say_through(live, "-o", str(tmp_path / "x.wav"), "--speaker-embedding", embedding)
    assert frames_of(tmp_path / "x.wav")


@pytest.mark.parametrize("field", ["ref_audio", "ref_text", "speaker_embedding"])
def test_broker_takes_no_voice_along(
    tmp_path: Path, recording: str, embedding: str, field: str, capsys: pytest.CaptureFixture[str]
) -> None:
    value = {"ref_audio": recording, "ref_text": "Hello.", "speaker_embedding": embedding}[field]
    given = [f"--{field.replace('_', '-')}", value, "--mqtt", "mqtt://127.0.0.1:9"]
    assert main(["say", TEXT, "-o", str(tmp_path / "x.wav"), *given]) == 1
    assert f"{field} cannot be sent through a broker" in capsys.readouterr().err


def test_speech_is_played_and_saved(
    fake_engine: FakeSpeechEngine, tmp_path: Path, player: Callable[[str], Path]
) -> None:
    played = player("cat")
    assert main(["say", TEXT, "-o", str(tmp_path / "x.wav"), "--play"]) == 0
    assert played.read_bytes() == frames_of(tmp_path / "x.wav")
    assert fake_engine.requests[0].lead_ms is not None


def test_file_is_whole_when_the_player_fails(
    fake_engine: FakeSpeechEngine, tmp_path: Path, player: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    player("cat; exit 3")
    assert main(["say", TEXT, "-o", str(tmp_path / "x.wav"), "--play"]) == 1
    assert "the player ended with status 3" in capsys.readouterr().err
    assert frames_of(tmp_path / "x.wav")


@pytest.mark.parametrize(("text", "shares"), [("Many words follow here. " * 20, True), (TEXT, False)])
def test_terminal_shows_share_of_a_long_text(
    fake_engine: FakeSpeechEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, shares: bool
) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", terminal)
    assert main(["say", text, "-o", str(tmp_path / "x.wav")]) == 0
    assert ("% of the text" in terminal.getvalue()) == shares
