from __future__ import annotations

import io
import os
import shutil
import signal
import sys
import threading
import wave
from dataclasses import replace

import numpy as np
import pytest

from realtime.cli import main
from realtime.commands import say
from tests.fakes.engine import FakeScript, tone
from tests.fakes.engine_script import SAMPLE_RATE

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
    assert capfdbinary.readouterr().out[44:] == wav.read_bytes()[44:]


def test_without_player_and_file_it_says_what_to_do(fake_engine, monkeypatch, capsys):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert main(["say", TEXT]) == 1
    assert "name a file with -o" in capsys.readouterr().err


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
