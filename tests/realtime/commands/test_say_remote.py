from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import wave
from pathlib import Path

import pytest
import soundfile

from realtime.cli import main
from tests.realtime.server_process import server

TEXT = "Hello there, how are you today?"


def seconds_in(path: Path) -> float:
    with wave.open(str(path)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 24_000)
        return file.getnframes() / 24_000


def say(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "realtime.cli", "say", *arguments]


def test_a_text_is_spoken_through_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wav = tmp_path / "speech.wav"
    with server({"first_chunk_s": 0.01, "real_time_factor": 0.01}) as running:
        assert main(["say", TEXT, "-o", str(wav), "--url", running.url, "--voice", "ben", "--seed", "5"]) == 0
    told = capsys.readouterr().err
    assert seconds_in(wav) > 1
    assert f"completed: {seconds_in(wav):.2f} s spoken" in told
    assert "seed 5" in told


def test_text_from_standard_input_speaks_before_it_has_ended(tmp_path: Path) -> None:
    wav = tmp_path / "speech.wav"
    with (
        server({"first_chunk_s": 0.01}) as running,
        subprocess.Popen(say("-", "-o", str(wav), "--url", running.url), stdin=subprocess.PIPE) as speaking,
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


def test_ctrl_c_cancels_and_keeps_what_was_written(tmp_path: Path) -> None:
    wav = tmp_path / "speech.wav"
    with (
        server({"first_chunk_s": 0.01, "real_time_factor": 1.0}) as running,
        subprocess.Popen(say(TEXT * 5, "-o", str(wav), "--url", running.url), stderr=subprocess.PIPE) as speaking,
    ):
        wait_for_size(wav, 20_000)
        os.kill(speaking.pid, signal.SIGINT)
        _, told = speaking.communicate(timeout=10)
    assert speaking.returncode == 130
    assert b"cancelled" in told
    assert 0.2 < seconds_in(wav) < 8


def wait_for_size(path: Path, num_bytes: int) -> None:
    deadline_s = time.monotonic() + 10
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
