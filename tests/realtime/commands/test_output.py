from __future__ import annotations

import os
import shutil
import wave
from pathlib import Path

import pytest

from realtime.commands.output import PLAYERS, Player, WavFile, find_player

PCM = bytes(range(200)) * 10


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
    output = WavFile(tmp_path / "a.wav", 24_000)
    await output.write(PCM[:500])
    await output.write(PCM[500:])
    await output.finish()
    with wave.open(str(tmp_path / "a.wav")) as file:
        assert file.getparams()[:4] == (1, 2, 24_000, len(PCM) // 2)
        assert file.readframes(len(PCM)) == PCM


async def test_an_aborted_wav_file_is_whole(tmp_path):
    output = WavFile(tmp_path / "a.wav", 24_000)
    await output.write(PCM[:500])
    await output.abort()
    with wave.open(str(tmp_path / "a.wav")) as file:
        assert file.readframes(len(PCM)) == PCM[:500]


@pytest.mark.parametrize("end", [WavFile.finish, WavFile.abort])
async def test_without_speech_a_file_stays_as_it_was(tmp_path, end):
    (tmp_path / "old.wav").write_bytes(b"an old one")
    for name in ("new.wav", "old.wav"):
        await end(WavFile(tmp_path / name, 24_000))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"old.wav": b"an old one"}


@pytest.mark.parametrize("name", PLAYERS)
async def test_a_player_gets_the_rate_and_all_of_the_audio(player_program, tmp_path, monkeypatch, name):
    program = player_program(f'echo "$@" > {tmp_path}/arguments; cat > {tmp_path}/heard', name)
    monkeypatch.setattr(shutil, "which", lambda wanted: str(program) if wanted == name else None)
    player = await Player.start(find_player(), 24_000)
    await player.write(PCM)
    await player.finish()
    await player.abort()
    assert (tmp_path / "heard").read_bytes() == PCM
    assert "24000" in (tmp_path / "arguments").read_text()


async def test_an_aborted_player_falls_silent_at_once(player_program):
    player = await Player.start(str(player_program("exec sleep 3600")), 24_000)
    await player.write(PCM)
    await player.abort()


async def test_a_player_that_fails_is_an_error(player_program):
    player = await Player.start(str(player_program("cat > /dev/null; exit 3")), 24_000)
    await player.write(PCM)
    with pytest.raises(OSError, match="status 3"):
        await player.finish()


def test_without_a_player_there_is_none(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert find_player() is None
