"""The measurement of a checkpoint, on the embedded voice and on random weights."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import wave
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.released import Speaker, Spoken, count_runaways, count_word_errors, main
from engine.api import FinishReason
from tests.fakes.checkpoints import write_checkpoint

TEXTS = ("Good morning to all.", "It is late, and the rain is cold.", "Where have you been?")


@contextmanager
def transcriber(texts: tuple[str, ...]) -> Iterator[str]:
    """A transcription server that answers with these texts, one after the other."""
    left = iter(texts)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            is_wav = b"RIFF" in body and self.path == "/v1/audio/transcriptions"
            self.send_response(200 if is_wav else 400)
            self.end_headers()
            self.wfile.write(json.dumps({"text": next(left)}).encode())

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Runs the program in this process and returns its last line."""

    def run(*arguments: str) -> dict[str, Any]:
        texts = tmp_path / "texts.txt"
        texts.write_text("\n".join(TEXTS))
        usual = ("--texts", str(texts), "--device", "cpu", "--ttfa-replies", "2", "--concurrency", "2")
        monkeypatch.setattr(sys, "argv", ["released", *usual, *arguments])
        main()
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    return run


@pytest.mark.timeout(300)
def test_embedded_voice_is_measured_without_an_encoder(run):
    heard = (TEXTS[0].upper(), "It is late and the rain", TEXTS[2])
    with transcriber(heard) as url:
        report = run("--transcriber", url, "--long-chars", "120")
    assert report["word_error_rate"] == pytest.approx(2 / 16, abs=1e-4)
    assert report["speaker_similarity"] is None
    assert report["runaways"]["share"] == 0
    assert report["drift"]["seconds"] > 3
    assert report["ttfa_ms"]["1"]["p50"] > 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_random_weights_that_clone_are_measured(run, tmp_path):
    folder = write_checkpoint(tmp_path / "model", task="base")
    recording = tmp_path / "voice.wav"
    with wave.open(str(recording), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes(np.random.default_rng(0).integers(-3_000, 3_000, 32_000, dtype=np.int16).tobytes())
    report = run("--model", str(folder), "--recording", str(recording), "--long-chars", "60")
    assert report["word_error_rate"] is None
    assert report["speaker_similarity"]["to"] == "recording"
    assert -1 <= report["speaker_similarity"]["min"] <= report["speaker_similarity"]["mean"] <= 1
    assert sum(report["runaways"]["reasons"].values()) == len(TEXTS)


@pytest.mark.parametrize(
    ("heard", "errors"),
    [("one two three", 0), ("One, two... THREE!", 0), ("one three", 1), ("one two two three", 1), ("", 3), ("x", 3)],
)
def test_word_errors_are_insertions_deletions_and_changes(heard, errors):
    assert count_word_errors("one two three", heard) == errors


@pytest.mark.parametrize(
    ("seconds", "reason", "share"),
    [(1.0, FinishReason.STOP, 0), (9.0, FinishReason.STOP, 0.25), (1.0, FinishReason.LOOP, 0.25), (0, "stop", 0.25)],
)
def test_runaways_are_cut_or_long_or_silent(seconds, reason, share):
    normal = Spoken("a text", np.zeros(1_000, np.float32), FinishReason.STOP, 1.0)
    odd = Spoken("a text", np.zeros(int(1_000 * seconds), np.float32), FinishReason(reason), 1.0)
    assert count_runaways([normal, normal, normal, odd], 1_000)["share"] == share


class NarrowSpeaker(Speaker):
    """Speaks at most 60 characters."""

    def __init__(self) -> None: ...

    async def speak(self, number: int, text: str) -> Spoken:
        error = "request_too_long" if len(text) > 60 else None
        return Spoken(text, np.ones(len(text), np.float32), FinishReason.STOP, 1.0, error)


def test_long_text_is_shortened_to_the_context():
    spoken = asyncio.run(NarrowSpeaker().speak_long(["A sentence of a text."] * 20, 300))
    assert (spoken.error, len(spoken.text) > 30) == (None, True)
