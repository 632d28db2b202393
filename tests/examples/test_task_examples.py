"""The examples of each task, on small random checkpoints: what they write and print. Their sound proves nothing."""

from __future__ import annotations

import asyncio
import json
import os
import runpy
import shutil
import sys
import wave
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.launch import create_engine
from sessions.audio.pcm import s16_to_float
from sessions.audio.recordings.decode import decode_recording
from sessions.audio.wav import HEADER_BYTES, wav_file
from tests.fakes.checkpoints import GENERATION, TINY_PROJECTED, write_checkpoint, write_json
from tests.fork_server import fork_server
from tests.realtime.live_server import LiveServer, live_server
from tests.sessions.audio.signals import speech_like

pytestmark = pytest.mark.usefixtures("quick_engines")

EXAMPLES = Path(__file__).parents[2] / "examples"
RUN_PROGRAM = "tests.examples.run_program"
IMPORTS = ("openai.resources.audio.speech", "websockets.asyncio.client")
RATE = 24_000
TEXT, TRANSCRIPT = "Hello there.", "hello there my friend"
SHORT = ("--seed", "5", "--max-frames", "8")
# Checkpoints by task.
ONLINE = {"speak": "custom_voice", "custom_voice": "custom_voice", "voice_design": "voice_design", "clone": "base"}

Run = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def folder(task: str) -> Path:
        if task not in made:
            made[task] = write_checkpoint(tmp_path_factory.mktemp(task), TINY_PROJECTED, task=task)
            # At random weights a warmer draw is all noise: the same words in every voice.
            cool = {"temperature": 0.2, "subtalker_temperature": 0.2, "max_new_tokens": 13}
            write_json(made[task] / "generation_config.json", GENERATION | cool)
        return made[task]

    return folder


@pytest.fixture
def recordings(tmp_path: Path) -> list[str]:
    paths = [tmp_path / name for name in ("ann.wav", "ben.wav")]
    for seed, path in enumerate(paths):
        path.write_bytes(wav_file(speech_like(36_000, 16_000, seed=seed), 16_000))
    return [str(path) for path in paths]


@pytest.fixture
def run_offline(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    folder_of: Callable[[str], Path],
) -> Run:
    """Runs a program in this process and returns the lines that it prints."""

    def run(program: str, checkpoint: str, *arguments: str) -> list[dict[str, Any]]:
        where = ("--model", str(folder_of(checkpoint)), "--out", str(tmp_path))
        monkeypatch.setattr(sys, "argv", [program, *arguments, *where, *SHORT])
        monkeypatch.syspath_prepend(EXAMPLES / "offline")
        monkeypatch.delitem(sys.modules, "common", raising=False)
        runpy.run_path(str(EXAMPLES / "offline" / program), run_name="__main__")
        monkeypatch.delitem(sys.modules, "common")
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run


def pcm_of(path: Path) -> bytes:
    with wave.open(str(path)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, RATE)
        return file.readframes(file.getnframes())


def is_same(one: bytes, other: bytes) -> bool:
    """Whether two pieces of s16 hold the same speech: batches of other sizes round otherwise."""
    first, second = (np.frombuffer(pcm, "<i2").astype(np.int32) for pcm in (one, other))
    return first.size == second.size and bool(np.abs(first - second).max() <= 2)


def check_files(folder: Path, timing: dict[str, Any]) -> bytes:
    """The chunks make up the file, and the JSON describes them."""
    path = folder / timing["file"]
    pcm = pcm_of(path)
    about = json.loads(path.with_suffix(".json").read_text())
    assert {name: about[name] for name in timing if name in about} == {
        name: value for name, value in timing.items() if name in about
    }
    assert b"".join(pcm_of(folder / chunk["file"]) for chunk in about["chunks"]) == pcm
    assert about["audio_s"] == round(len(pcm) / 2 / RATE, 2) > 0
    assert about["first_audio_ms"] == about["chunks"][0]["arrived_ms"]
    return pcm


def test_offline_speak(run_offline: Run, tmp_path: Path) -> None:
    [plain] = run_offline("speak.py", "custom_voice", TEXT, "--voice", "ada")
    first = check_files(tmp_path, plain)
    [again] = run_offline("speak.py", "custom_voice", TEXT, "--voice", "ada", "--temperature", "2")
    assert not is_same(check_files(tmp_path, again), first)
    assert (plain["seed"], again["file"]) == (5, "speak.wav")


def test_offline_custom_voice_follows_instruction(run_offline: Run, tmp_path: Path) -> None:
    [plain] = run_offline("custom_voice.py", "custom_voice", TEXT, "--voice", "ada")
    first = check_files(tmp_path, plain)
    [styled] = run_offline("custom_voice.py", "custom_voice", TEXT, "--voice", "ada", "--instruct", "Whisper.")
    assert not is_same(check_files(tmp_path, styled), first)


def test_offline_voice_design_follows_description(run_offline: Run, tmp_path: Path) -> None:
    [deep] = run_offline("voice_design.py", "voice_design", TEXT, "An old deep voice.")
    first = check_files(tmp_path, deep)
    [young] = run_offline("voice_design.py", "voice_design", TEXT, "A young one.")
    assert not is_same(check_files(tmp_path, young), first)


def test_offline_clone_with_and_without_transcript(run_offline: Run, tmp_path: Path, recordings: list[str]) -> None:
    [alone] = run_offline("clone.py", "base", TEXT, recordings[0])
    first = check_files(tmp_path, alone)
    again, in_context = run_offline("clone.py", "base", TEXT, recordings[0], "--transcript", TRANSCRIPT)
    assert is_same(check_files(tmp_path, again), first)
    assert not is_same(check_files(tmp_path, in_context), first)
    assert in_context["file"] == "clone_in_context.wav"


def test_offline_embedding_blends_from_first_to_second(run_offline: Run, tmp_path: Path, recordings: list[str]) -> None:
    lines = run_offline("embedding.py", "base", TEXT, *recordings)
    assert [line["weight"] for line in lines] == [0, 0.25, 0.5, 0.75, 1]
    cosines = [line["cosine_to_second"] for line in lines]
    assert cosines == sorted(cosines)
    assert cosines[-1] == lines[0]["cosine_to_first"] == 1
    spoken = [check_files(tmp_path, line) for line in lines]
    for recording, blended in zip(recordings, (spoken[0], spoken[-1]), strict=True):
        [alone] = run_offline("clone.py", "base", TEXT, recording)
        assert is_same(check_files(tmp_path, alone), blended)
        assert len(json.loads((tmp_path / f"{Path(recording).stem}.json").read_text())) == 48


def test_offline_batch_speaks_every_line(run_offline: Run, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Hello there.\n\nHow are you?\nFine, thank you.\n")
    *timings, total = run_offline("batch.py", "custom_voice", str(prompts))
    assert [timing["file"] for timing in timings] == [f"prompt-{i}.wav" for i in range(3)]
    assert all(check_files(tmp_path, timing) for timing in timings)
    assert total["texts"] == 3


def test_offline_refusal_is_one_line(run_offline: Run) -> None:
    with pytest.raises(SystemExit, match="voice is 'ada'; known: none"):
        run_offline("custom_voice.py", "base", TEXT, "--voice", "ada", "--instruct", "Whisper.")


@asynccontextmanager
async def serving(folder: Path, voices: Path) -> AsyncIterator[LiveServer]:
    engine: Any = create_engine(folder, device="cpu", process=False, kv_memory_mb=8, lazy_graph_capture=True)
    async with live_server(engine, voices__folder=str(voices)) as live:
        yield live


async def run_online(folder: Path, command: list[str], **variables: str) -> list[dict[str, Any]]:
    """Run a program in a folder of its own; returns the lines that it prints."""
    folder.mkdir(exist_ok=True)  # noqa: ASYNC240
    how: dict[str, Any] = {"cwd": folder, "stdout": PIPE, "stderr": PIPE}
    how["env"] = os.environ | {"NO_PROXY": "*"} | variables
    if command[0] == "bash":
        program = await asyncio.create_subprocess_exec(*command, **how)
        printed, errors = await program.communicate()
    else:
        program = fork_server(RUN_PROGRAM, *IMPORTS).start(RUN_PROGRAM, *command, **how)
        printed, errors = await asyncio.to_thread(program.communicate)
    assert program.returncode == 0, errors.decode()[-2_000:]
    return [json.loads(line) for line in printed.splitlines()]


def curl(task: str, live: LiveServer, *arguments: str) -> list[str]:
    if shutil.which("curl") is None or shutil.which("bash") is None:
        pytest.skip("curl or bash is not installed")
    return ["bash", str(EXAMPLES / "online" / "curl.sh"), task, live.url.replace("ws", "http", 1), *arguments]


def openai(task: str, live: LiveServer, *arguments: str) -> list[str]:
    program = str(EXAMPLES / "online" / "openai_client.py")
    return [program, task, live.url.replace("ws", "http", 1), *arguments]


def native(task: str, live: LiveServer, *arguments: str) -> list[str]:
    return [str(EXAMPLES / "online" / "native_wire.py"), task, live.url, *arguments]


def sound_of(path: Path) -> bytes:
    """Return the s16 of a file, which is no silence."""
    data = path.read_bytes()
    assert np.abs(decode_recording(data, RATE, 60.0)).max() > 0.01
    return data[HEADER_BYTES:]


@pytest.mark.parametrize("task", ONLINE)
async def test_curl_and_openai_client_get_the_same_speech(
    task: str, folder_of: Callable[[str], Path], tmp_path: Path, recordings: list[str]
) -> None:
    given = recordings[:1] if task == "clone" else []
    async with serving(folder_of(ONLINE[task]), tmp_path / "voices") as live:
        [told] = await run_online(tmp_path / "curl", curl(task, live, *given))
        assert told["status"] == 200
        [line] = await run_online(tmp_path / "openai", openai(task, live, *given))
        spoken = sound_of(tmp_path / "openai" / line["file"])
        assert told["bytes"] == line["bytes"] == HEADER_BYTES + len(spoken)
        assert is_same(sound_of(tmp_path / "curl" / f"{task}.wav"), spoken)


async def test_embedding_of_both_clients_speaks_like_the_clone(
    folder_of: Callable[[str], Path], tmp_path: Path, recordings: list[str]
) -> None:
    async with serving(folder_of("base"), tmp_path / "voices") as live:
        await run_online(tmp_path, curl("clone", live, recordings[0]))
        clone = sound_of(tmp_path / "clone.wav")
        for command in (curl, openai):
            await run_online(tmp_path, command("embedding", live, recordings[0]))
            assert is_same(sound_of(tmp_path / "embedding.wav"), clone)
        assert live.speech.voices.list("local") == []


async def test_both_clients_speak_a_batch(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    async with serving(folder_of("custom_voice"), tmp_path / "voices") as live:
        await run_online(tmp_path, curl("batch", live))
        lines = await run_online(tmp_path, openai("batch", live))
    assert json.loads((tmp_path / "batch.json").read_text())["succeeded"] == 3
    assert sorted(line["file"] for line in lines) == [f"batch-{i}.wav" for i in range(3)]
    assert all(sound_of(tmp_path / line["file"]) for line in lines)


async def test_transcript_changes_the_clone_of_both_clients(
    folder_of: Callable[[str], Path], tmp_path: Path, recordings: list[str]
) -> None:
    async with serving(folder_of("base"), tmp_path / "voices") as live:
        await run_online(tmp_path, curl("clone_in_context", live, recordings[0]), TRANSCRIPT=TRANSCRIPT)
        by_curl = sound_of(tmp_path / "clone_in_context.wav")
        alone, in_context = await run_online(tmp_path, openai("clone", live, recordings[0], TRANSCRIPT))
        assert is_same(sound_of(tmp_path / in_context["file"]), by_curl)
        assert not is_same(sound_of(tmp_path / alone["file"]), by_curl)


@pytest.mark.parametrize("task", ["speak", "custom_voice", "batch"])
async def test_native_wire_speaks(task: str, folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    async with serving(folder_of("custom_voice"), tmp_path / "voices") as live:
        await check_native(tmp_path, native(task, live), 3 if task == "batch" else 1)


async def test_native_wire_designs_a_voice(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    async with serving(folder_of("voice_design"), tmp_path / "voices") as live:
        await check_native(tmp_path, native("voice_design", live))


async def test_native_wire_speaks_like_a_stored_voice(
    folder_of: Callable[[str], Path], tmp_path: Path, recordings: list[str]
) -> None:
    async with serving(folder_of("base"), tmp_path / "voices") as live:
        form = [("name", (None, "ann")), ("consent", (None, "yes"))]
        files: list[Any] = [*form, ("audio_sample", ("a.wav", Path(recordings[0]).read_bytes(), "audio/wav"))]  # noqa: ASYNC240
        async with live.http() as http:
            assert (await http.post("/v1/audio/voices", files=files, timeout=60)).status_code == 200
        await check_native(tmp_path, native("clone", live, "ann"))


async def check_native(folder: Path, command: list[str], num_files: int = 1) -> None:
    lines = await run_online(folder, command)
    assert [line["status"] for line in lines] == ["completed"] * num_files
    for line in lines:
        pcm = pcm_of(folder / line["file"])
        assert line["audio_s"] == pytest.approx(len(pcm) / 2 / RATE)
        assert np.abs(s16_to_float(np.frombuffer(pcm, "<i2"))).max() > 0.01


@pytest.mark.parametrize("program", [curl, openai, native])
async def test_refusal_is_shown(
    program: Callable[..., list[str]], folder_of: Callable[[str], Path], tmp_path: Path
) -> None:
    async with serving(folder_of("base"), tmp_path / "voices") as live:
        with pytest.raises(AssertionError, match=r"voice is missing|speaks only like a recording"):
            await run_online(tmp_path, program("speak", live))
