"""The command say: by an engine here and by a server, and its streams, files and players."""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import wave
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from realtime.cli import main
from realtime.commands import say
from realtime.commands.streams import (
    PLAYERS,
    AudioFile,
    AudioPlayer,
    StandardOutput,
    arriving_text,
    find_player,
    output_path,
)
from realtime.config_sections import WatermarkSettings
from realtime.watermark import load_watermark
from sessions.audio.provenance import wav_info_chunk
from tests.fakes.engine import FakeScript, tone
from tests.fakes.engine_script import SAMPLE_RATE
from tests.realtime.server_process import server

TEXT = "Hello there, how are you today?"
FOREVER = FakeScript(first_chunk_s=0.0, real_time_factor=1.0)


@pytest.fixture
def wav(tmp_path):
    return tmp_path / "speech.wav"


@pytest.fixture
def typed(monkeypatch):
    """What is written here arrives on standard input."""
    reading, writing = os.pipe()
    with os.fdopen(reading) as stdin, os.fdopen(writing, "wb", buffering=0) as keyboard:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield keyboard


def samples_of(path) -> np.ndarray:
    with wave.open(str(path)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, SAMPLE_RATE)
        return np.frombuffer(file.readframes(file.getnframes()), np.int16) / 32768


def test_a_text_is_spoken_into_a_file(fake_engine, wav, capsys):
    assert main(["say", TEXT, "-o", str(wav), "--voice", "ben", "--language", "en", "--seed", "5"]) == 0
    [request] = fake_engine.requests
    assert (request.voice, request.language, request.sampling.seed) == ("ben", "en", 5)
    samples = samples_of(wav)
    assert np.abs(samples - tone(request, 0, len(samples))).max() < 1e-3
    summary = capsys.readouterr().err
    assert f"completed: {len(samples) / SAMPLE_RATE:.2f} s spoken" in summary
    assert "first audio after" in summary
    assert "seed 5" in summary
    assert not fake_engine.is_alive


def test_say_without_seed_prints_random_seed(fake_engine, wav, capsys):
    main(["say", TEXT, "-o", str(wav)])
    assert f"seed {fake_engine.requests[0].sampling.seed}" in capsys.readouterr().err


def test_ssml_controls_speech_and_is_warned_about(fake_engine, wav, capsys):
    text = 'One.<break time="2s"/><voice name="ben">Two</voice><blink>.</blink>'
    assert main(["say", text, "--ssml", "-o", str(wav), "--voice", "ada"]) == 0
    assert [(request.voice, request.text) for request in fake_engine.requests] == [("ada", "One."), ("ben", "Two")]
    assert len(samples_of(wav)) > 2 * SAMPLE_RATE
    assert "unknown element: <blink> at character 51" in capsys.readouterr().err


def test_speakers_speak_their_lines(fake_engine, wav, capsys):
    speakers = ["--speaker", "Ann=ada", "--speaker", "Ben=ben"]
    assert main(["say", "Ann: One.\nBen: Two.\nTom: Me.", *speakers, "-o", str(wav)]) == 0
    spoken = [(request.voice, request.text.strip()) for request in fake_engine.requests]
    assert spoken == [("ada", "One."), ("ben", "Two.\nTom: Me.")]
    assert "unknown speaker: Tom at character 20" in capsys.readouterr().err


def test_speaker_without_a_voice_is_refused(fake_engine, wav, capsys):
    assert main(["say", TEXT, "--speaker", "Ann=nobody", "-o", str(wav)]) == 1
    assert "speakers: 'Ann' has no voice: voice 'nobody' is unknown" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["say", TEXT, "--speaker", "Ann", "-o", str(wav)])
    assert "must be LABEL=VOICE, is 'Ann'" in capsys.readouterr().err
    assert not fake_engine.requests


@pytest.mark.parametrize("option", [["--ssml"], ["--lexicon", "words.json"], ["--speaker", "Ann=ada"]])
def test_text_control_is_refused_with_a_broker(wav, capsys, option):
    assert main(["say", TEXT, *option, "-o", str(wav), "--mqtt", "mqtt://127.0.0.1:1"]) == say.WRONG_SETTINGS
    assert f"{option[0]} needs a local engine or --url" in capsys.readouterr().err


def test_lexicon_file_changes_what_is_spoken(fake_engine, wav, tmp_path, capsys):
    path = tmp_path / "words.pls"
    path.write_text(
        "<lexicon><lexeme><grapheme>NGINX</grapheme><alias>engine x</alias></lexeme>"
        "<lexeme><grapheme>tomato</grapheme><phoneme>5</phoneme></lexeme></lexicon>"
    )
    assert main(["say", "Ask NGINX.", "--lexicon", str(path), "-o", str(wav)]) == 0
    assert [request.text for request in fake_engine.requests] == ["Ask engine x."]
    assert "1 entries cannot be read and are left out" in capsys.readouterr().err


def test_lexicon_file_that_cannot_be_read_is_refused(fake_engine, wav, tmp_path, capsys):
    path = tmp_path / "words.json"
    path.write_text("{}")
    assert main(["say", TEXT, "--lexicon", str(path), "-o", str(wav)]) == 1
    assert "neither PLS nor JSON" in capsys.readouterr().err
    assert main(["say", TEXT, "--lexicon", str(tmp_path / "missing"), "-o", str(wav)]) == 1


def test_text_from_standard_input_speaks_before_it_has_ended(fake_engine, wav, typed):
    def write() -> None:
        typed.write(b"Hello there. ")
        while not any(stream.num_frames for stream in list(fake_engine.streams.values())):
            pass
        typed.write(b"And how are you?")
        typed.close()

    writer = threading.Thread(target=write)
    writer.start()
    assert main(["say", "-", "-o", str(wav)]) == 0
    writer.join()
    assert len(samples_of(wav)) > 0


def test_ctrl_c_cancels_and_keeps_what_was_written(fake_engine, wav, capsys):
    fake_engine.script = FOREVER
    handler = signal.getsignal(signal.SIGINT)

    def interrupt() -> None:
        while not any(stream.num_frames > 3 for stream in list(fake_engine.streams.values())):
            pass
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    assert main(["say", TEXT * 100, "-o", str(wav)]) == 130
    assert len(samples_of(wav)) > 0
    assert capsys.readouterr().err.startswith("cancelled: ")
    assert signal.getsignal(signal.SIGINT) is handler


def test_say_reports_engine_failure_in_mid_speech(fake_engine, wav, capsys):
    fake_engine.script_next(FakeScript(fail_at_frame=3, first_chunk_s=0.0, real_time_factor=0.0))
    assert main(["say", TEXT, "-o", str(wav)]) == 1
    assert "failed" in capsys.readouterr().err
    assert len(samples_of(wav)) > 0


@pytest.mark.parametrize("arguments", [["--voice", "nobody"], ["--language", "xx"]])
def test_say_reports_unsupported_feature_in_one_line(fake_engine, wav, arguments, capsys):
    assert main(["say", TEXT, "-o", str(wav), *arguments]) == 1
    assert arguments[1] in capsys.readouterr().err
    assert not wav.exists()


@pytest.mark.parametrize("text", ["", "   ", "\U0001f600"])
def test_say_reports_unspeakable_text(fake_engine, wav, text, capsys):
    assert main(["say", text, "-o", str(wav)]) == 1
    assert "nothing that can be spoken" in capsys.readouterr().err
    assert not wav.exists()


def test_say_reports_file_that_cannot_be_written(fake_engine, tmp_path, capsys):
    assert main(["say", TEXT, "-o", str(tmp_path / "no" / "such.wav")]) == 1
    assert "such.wav" in capsys.readouterr().err


@pytest.mark.parametrize("way", [[], ["--url", "ws://127.0.0.1:9"], ["--mqtt", "mqtt://127.0.0.1:9"]])
def test_unknown_suffix_is_refused_before_synthesis(fake_engine, tmp_path, way, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["say", TEXT, "-o", str(tmp_path / "speech.docx"), *way])
    assert ended.value.code == 2
    assert "the suffix must be one of .wav, .mp3, .opus, .flac, .pcm" in capsys.readouterr().err
    assert not fake_engine.requests
    assert not list(tmp_path.iterdir())


def test_standard_output_holds_nothing_but_speech(fake_engine, wav, capfdbinary):
    assert main(["say", TEXT, "-o", str(wav), "--seed", "5"]) == 0
    assert main(["say", TEXT, "-o", "-", "--seed", "5"]) == 0
    assert capfdbinary.readouterr().out[44:] == wav.read_bytes()[44:].removesuffix(wav_info_chunk())


def test_without_player_and_file_the_error_gives_advice(fake_engine, monkeypatch, capsys):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert main(["say", TEXT]) == 1
    assert "name a file with -o" in capsys.readouterr().err


def test_file_is_marked_by_default(fake_engine, wav, monkeypatch):
    monkeypatch.delenv("VOICEWIRE_WATERMARK_ENABLED")
    assert main(["say", "Hi.", "-o", str(wav)]) == 0
    marked = samples_of(wav)
    unmarked = tone(fake_engine.requests[0], 0, len(marked))
    watermark = load_watermark(WatermarkSettings())
    assert np.abs(marked - watermark.create_embedder(SAMPLE_RATE).push(unmarked)).max() < 1e-3
    assert np.abs(marked - unmarked).max() > 1e-2


def test_a_player_is_used_when_there_is_one(fake_engine, tmp_path, monkeypatch):
    player = tmp_path / "aplay"
    player.write_text(f"#!/bin/sh\ncat > {tmp_path}/heard\n")
    player.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert main(["say", "Hi."]) == 0
    heard = np.frombuffer((tmp_path / "heard").read_bytes(), np.int16) / 32768
    assert np.abs(heard - tone(fake_engine.requests[0], 0, len(heard))).max() < 1e-3


def test_progress_is_live_on_a_terminal(fake_engine, wav, monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    main(["say", TEXT, "-o", str(wav)])
    assert terminal.getvalue().count("\r") > 3


def test_say_gives_up_on_silent_engine(fake_engine, wav, capsys, monkeypatch):
    fake_engine.script = FakeScript(first_chunk_s=1_000.0)
    monkeypatch.setattr(say, "LIMITS", replace(say.LIMITS, engine_timeout_s=0.01))
    monkeypatch.setattr(say, "PROGRESS_INTERVAL_S", 0.02)
    assert main(["say", TEXT, "-o", str(wav)]) == 1
    assert "engine_timeout_s is 0.01" in capsys.readouterr().err
    assert not wav.exists()
    assert not fake_engine.streams


def seconds_in(path: Path) -> float:
    with wave.open(str(path)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 24_000)
        return file.getnframes() / 24_000


def say_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "realtime.cli", "say", *arguments]


def test_a_text_is_spoken_through_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wav = tmp_path / "speech.wav"
    with server({"first_chunk_s": 0.01, "real_time_factor": 0.01}) as running:
        assert main(["say", TEXT, "-o", str(wav), "--url", running.url, "--voice", "ben", "--seed", "5"]) == 0
    told = capsys.readouterr().err
    assert seconds_in(wav) > 1
    assert f"completed: {seconds_in(wav):.2f} s spoken" in told
    assert "seed 5" in told


def test_server_speaks_text_before_standard_input_ends(tmp_path: Path) -> None:
    wav = tmp_path / "speech.wav"
    with (
        server({"first_chunk_s": 0.01}) as running,
        subprocess.Popen(say_command("-", "-o", str(wav), "--url", running.url), stdin=subprocess.PIPE) as speaking,
    ):
        assert speaking.stdin is not None
        speaking.stdin.write(b"Hello there, and how ")
        speaking.stdin.flush()
        wait_for_size(wav, 20_000)
        speaking.stdin.write(b"are you?")
        speaking.stdin.close()
        assert speaking.wait(10) == 0
    assert seconds_in(wav) > 1


@pytest.mark.parametrize("suffix", ["mp3", "opus"])
def test_server_speech_is_written_in_the_format_of_the_suffix(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"speech.{suffix}"
    with server({"first_chunk_s": 0.01, "real_time_factor": 0.01}) as running:
        assert main(["say", TEXT, "-o", str(path), "--url", running.url]) == 0
    assert soundfile.info(path).duration > 1


def test_ctrl_c_cancels_the_response_of_a_server(tmp_path: Path) -> None:
    wav = tmp_path / "speech.wav"
    with (
        server({"first_chunk_s": 0.01, "real_time_factor": 1.0}) as running,
        subprocess.Popen(
            say_command(TEXT * 5, "-o", str(wav), "--url", running.url), stderr=subprocess.PIPE
        ) as speaking,
    ):
        wait_for_size(wav, 20_000)
        os.kill(speaking.pid, signal.SIGINT)
        _, told = speaking.communicate(timeout=10)
    assert speaking.returncode == 130
    assert b"cancelled" in told
    assert 0.2 < seconds_in(wav) < 8


def wait_for_size(path: Path, num_bytes: int) -> None:
    deadline_s = time.monotonic() + 60
    while not path.exists() or path.stat().st_size < num_bytes:
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [(["--voice", "nobody"], "voice 'nobody' is unknown"), (["--language", "xx"], "language 'xx' is unknown")],
)
def test_say_reports_refusal_of_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    with server() as running:
        assert main(["say", TEXT, "-o", str(tmp_path / "x.wav"), "--url", running.url, *arguments]) == 1
    assert complaint in capsys.readouterr().err
    assert not (tmp_path / "x.wav").exists()


def test_a_server_that_wants_a_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = "a-key-of-enough-characters"
    with server({"first_chunk_s": 0.01, "real_time_factor": 0.01}, auth__api_keys=f"agent:{key}") as running:
        arguments = ["say", TEXT, "-o", str(tmp_path / "x.wav"), "--url", running.url]
        assert main(arguments) == 1
        assert "401" in capsys.readouterr().err
        assert main([*arguments, "--api-key", key]) == 0


def test_no_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["say", TEXT, "-o", str(tmp_path / "x.wav"), "--url", "ws://127.0.0.1:9"]) == 1
    assert "voicewire say:" in capsys.readouterr().err


@pytest.fixture
def pipe():
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)


async def test_text_comes_before_the_stream_ends(pipe):
    reading, writing = pipe
    texts = arriving_text(reading)
    for word in ("Hello ", "there"):
        os.write(writing, word.encode())
        assert await anext(texts) == word
    os.close(writing)
    assert [text async for text in texts] == []


async def gathered(pieces: list[bytes]) -> str:
    reading, writing = os.pipe()
    collecting = asyncio.create_task(collect(reading))
    for piece in pieces:
        os.write(writing, piece)
        await asyncio.sleep(0)
    os.close(writing)
    text = await collecting
    os.close(reading)
    return text


async def collect(descriptor: int) -> str:
    return "".join([text async for text in arriving_text(descriptor)])


@given(raw=st.text().map(str.encode) | st.binary(), cuts=st.lists(st.integers(0, 100), max_size=5).map(sorted))
def test_any_cut_of_the_bytes_gives_the_same_text(raw, cuts):
    pieces = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, None], strict=True)]
    assert asyncio.run(gathered(pieces)) == raw.decode("utf-8", errors="replace")


async def test_nothing_waits_for_input_that_never_comes(pipe):
    reading, writing = pipe
    waiting = asyncio.create_task(collect(reading))
    await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.wait([waiting])
    os.close(writing)


PCM = bytes(range(200)) * 10
RATE = 24_000
SPEECH = (16_000 * np.sin(np.arange(RATE) * 2 * np.pi * 300 / RATE)).astype("<i2").tobytes()
FORMATS = {
    "wav": ("WAV", "PCM_16"),
    "flac": ("FLAC", "PCM_16"),
    "mp3": ("MP3", "MPEG_LAYER_III"),
    "opus": ("OGG", "OPUS"),
}


@pytest.fixture
def player_program(tmp_path, monkeypatch):
    """Puts a player of this shell script first in the path."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")

    def install(script: str, name: str = "aplay") -> Path:
        program = programs / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return program

    return install


async def test_a_wav_file_holds_what_was_written(tmp_path):
    output = AudioFile(tmp_path / "a.wav", 24_000)
    await output.write(PCM[:500])
    await output.write(PCM[500:])
    await output.finish()
    with wave.open(str(tmp_path / "a.wav")) as file:
        assert file.getparams()[:4] == (1, 2, 24_000, len(PCM) // 2)
        assert file.readframes(len(PCM)) == PCM


async def test_an_aborted_wav_file_is_whole(tmp_path):
    output = AudioFile(tmp_path / "a.wav", 24_000)
    await output.write(PCM[:500])
    await output.abort()
    with wave.open(str(tmp_path / "a.wav")) as file:
        assert file.readframes(len(PCM)) == PCM[:500]


@pytest.mark.parametrize("end", [AudioFile.finish, AudioFile.abort])
async def test_without_speech_a_file_stays_as_it_was(tmp_path, end):
    (tmp_path / "old.wav").write_bytes(b"an old one")
    for name in ("new.wav", "old.wav"):
        await end(AudioFile(tmp_path / name, 24_000))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"old.wav": b"an old one"}


@pytest.mark.parametrize("suffix", FORMATS)
async def test_file_has_the_format_of_its_suffix(tmp_path, suffix):
    path = tmp_path / f"speech.{suffix.upper()}"
    output = AudioFile(path, RATE)
    for start in range(0, len(SPEECH), 960):
        await output.write(SPEECH[start : start + 960])
    await output.finish()
    with soundfile.SoundFile(path) as file:
        assert (file.format, file.subtype) == FORMATS[suffix]
        decoded = file.read()
        # An MP3 has no length: it is estimated from the size, tag included.
        assert file.frames == pytest.approx(len(decoded), rel=0.02 if suffix == "mp3" else 0)
    played_s = len(decoded) * RATE / file.samplerate / RATE
    assert played_s == pytest.approx(1.0, abs=0.1)
    assert np.abs(decoded).max() == pytest.approx(0.49, abs=0.05)


async def test_pcm_file_holds_bare_samples(tmp_path):
    output = AudioFile(tmp_path / "speech.pcm", RATE)
    await output.write(PCM)
    await output.finish()
    assert (tmp_path / "speech.pcm").read_bytes() == PCM


@pytest.mark.parametrize("name", ["speech", "speech.ogg", "speech.wav.txt", ".wav"])
def test_unknown_suffix_is_refused(name):
    with pytest.raises(argparse.ArgumentTypeError, match=rf"{name}.*suffix.*\.wav, \.mp3, \.opus, \.flac, \.pcm"):
        output_path(name)


async def test_standard_output_gets_a_wav_stream(capfdbinary):
    output = StandardOutput(RATE)
    await output.write(PCM)
    await output.finish()
    await output.abort()
    written = capfdbinary.readouterr().out
    assert written[:4] == b"RIFF"
    assert written[44:] == PCM


@pytest.mark.parametrize("name", PLAYERS)
async def test_a_player_gets_the_rate_and_all_of_the_audio(player_program, tmp_path, monkeypatch, name):
    program = player_program(f'echo "$@" > {tmp_path}/arguments; cat > {tmp_path}/heard', name)
    monkeypatch.setattr(shutil, "which", lambda wanted: str(program) if wanted == name else None)
    player = await AudioPlayer.start(find_player(), 24_000)
    await player.write(PCM)
    await player.finish()
    await player.abort()
    assert (tmp_path / "heard").read_bytes() == PCM
    assert "24000" in (tmp_path / "arguments").read_text()


async def test_an_aborted_player_falls_silent_at_once(player_program):
    player = await AudioPlayer.start(str(player_program("exec sleep 3600")), 24_000)
    await player.write(PCM)
    await player.abort()


async def test_a_player_that_fails_is_an_error(player_program):
    player = await AudioPlayer.start(str(player_program("cat > /dev/null; exit 3")), 24_000)
    await player.write(PCM)
    with pytest.raises(OSError, match="status 3"):
        await player.finish()


def test_without_a_player_there_is_none(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert find_player() is None
