"""The page with small checkpoints of random weights: the engine conditions on what the page sends."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
import wave
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from sessions.audio.wav import wav_file
from tests.fakes.checkpoints import TINY_PROJECTED, write_checkpoint
from tests.realtime.server_process import wire_address
from tests.sessions.audio.signals import speech_like
from tests.web_client.conftest import READY, until
from tests.web_client.test_voices import LISTED, upload

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SENTENCE = "Good evening."
# At random weights a warmer draw is all noise: the same words in every voice.
COOL = {"seed": 5, "temperature": 0.2, "predictor_temperature": 0.2, "min_new_tokens": 6, "max_frames": 6}
# Of 32,768.
MAX_DIFFERENCE = 3


@contextmanager
def page_of(task: str, folder: Path) -> Iterator[str]:
    """The address of the page of a server with a checkpoint of a task, without keys."""
    model = write_checkpoint(folder / "model", TINY_PROJECTED, task=task)
    settings = (f"engine.model={model}", f"voices.folder={folder / 'voices'}")
    options = [part for setting in settings for part in ("--set", setting)]
    command = [sys.executable, "-m", "realtime.cli", "serve", "--port", "0", "--log-level", "error", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield wire_address(process.stdout, "page")
        finally:
            process.terminate()


def speech(url: str, **fields: object) -> bytes:
    """A sentence as WAV, over the speech API."""
    body = {"input": SENTENCE, "response_format": "wav", "stream": False} | fields
    order = urllib.request.Request(f"{url}v1/audio/speech", json.dumps(body).encode())
    with urllib.request.urlopen(order) as answer:
        return answer.read()


def is_same(first: bytes, second: bytes) -> bool:
    """Chunks of other sizes are decoded to samples that differ in their last bits."""
    one, other = (samples_of(wav) for wav in (first, second))
    return one.size == other.size and bool(np.abs(one - other).max() <= MAX_DIFFERENCE)


def samples_of(wav: bytes) -> npt.NDArray[np.int_]:
    with wave.open(BytesIO(wav)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(int)


def saved(page: Any, press: Callable[[], None], path: Path) -> bytes:
    with page.expect_download() as download:
        press()
    download.value.save_as(path)
    return path.read_bytes()


def test_designed_voice_follows_description_and_seed(open_page: Callable, tmp_path: Path) -> None:
    with page_of("voice_design", tmp_path) as url:
        page = open_page(f"{url}#voices")
        until(page, READY)
        form = page.locator("#design-form")
        form.get_by_label("Description").fill("An old deep voice.")
        form.get_by_label("Seed").fill("7")
        page.fill("#voice-sentence", SENTENCE)
        form.get_by_role("button", name="Listen").click()
        page.locator("#design-version", has_text="Seed 7").wait_for()
        designed = saved(page, lambda: page.click("#design-save"), tmp_path / "designed.wav")
        assert is_same(designed, speech(url, instructions="An old deep voice.", seed=7))
        assert not is_same(designed, speech(url, instructions="A young one.", seed=7))
        assert not is_same(designed, speech(url, instructions="An old deep voice.", seed=8))
        page.context.close()


def test_stored_and_blended_voices_are_what_is_spoken(open_page: Callable, tmp_path: Path) -> None:
    with page_of("base", tmp_path) as url:
        page = open_page(f"{url}#voices")
        until(page, READY)
        page.locator("#recording-form").wait_for()
        for seed, name in enumerate(("ann", "bob")):
            recording = tmp_path / f"{name}.wav"
            recording.write_bytes(wav_file(speech_like(48_000, 24_000, seed=seed), 24_000))
            upload(page, recording, name)
        until(page, LISTED)
        page.fill("#blend-name", "both")
        page.fill("#blend-consent", "both agreed")
        page.click("#store-blend")
        page.get_by_role("button", name="Embedding both").wait_for()
        embeddings = {}
        for name in ("ann", "bob", "both"):
            press = page.get_by_role("button", name=f"Embedding {name}").click
            embeddings[name] = np.array(json.loads(saved(page, press, tmp_path / f"{name}.json")))
            spoken = speech(url, voice=name, **COOL)
            assert is_same(spoken, speech(url, speaker_embedding=embeddings[name].tolist(), **COOL))
            # Random weights hardly distinguish recordings.
            assert not is_same(spoken, speech(url, speaker_embedding=(-10 * embeddings[name]).tolist(), **COOL))
        assert np.abs(embeddings["ann"] - embeddings["bob"]).max() > 0
        mixed = (embeddings["ann"] + embeddings["bob"]) / 2
        assert embeddings["both"] == pytest.approx(mixed, rel=0.01, abs=0.01 * np.abs(mixed).max())
        page.context.close()
