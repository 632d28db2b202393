"""Standard input, audio files, standard output and players of the command line."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import wave
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from realtime.commands.streams import (
    PLAYERS,
    AudioFile,
    AudioPlayer,
    StandardOutput,
    arriving_text,
    find_player,
    output_path,
)


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
        assert file.frames == len(decoded)
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
