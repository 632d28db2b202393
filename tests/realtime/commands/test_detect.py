"""The command detect: what it reports of a file, with the stored key, another one, or none."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from realtime.cli import main
from realtime.commands.detect import NOT_FOUND
from realtime.commands.startup import WRONG_SETTINGS
from realtime.config_sections import WatermarkSettings
from realtime.watermark import load_watermark
from sessions.audio.watermark.embedder import Watermark
from sessions.audio.wav import wav_file
from tests.sessions.audio.signals import speech_like

RATE = 24_000
SPEECH = speech_like(6 * RATE, RATE, 5)


@pytest.fixture
def data_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def watermark(data_home: Path) -> Watermark:
    found = load_watermark(WatermarkSettings())
    assert found is not None
    return found


@pytest.fixture
def marked(watermark: Watermark, tmp_path: Path) -> str:
    path = tmp_path / "marked.wav"
    path.write_bytes(wav_file(watermark.create_embedder(RATE).push(SPEECH), RATE))
    return str(path)


@pytest.fixture
def unmarked(tmp_path: Path) -> str:
    path = tmp_path / "unmarked.wav"
    path.write_bytes(wav_file(SPEECH, RATE))
    return str(path)


def test_marked_file_is_reported_with_payload_and_place(
    marked: str, watermark: Watermark, capsys: pytest.CaptureFixture
) -> None:
    assert main(["detect", marked]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"marked, payload {watermark.payload} (the default of this key)"
    assert second.split()[:4] == ["0.0", "to", "6.0", "s"]
    assert main(["detect", marked, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["marked"], report["payload"], report["is_default_payload"]) == (True, watermark.payload, True)
    assert [span["payload"] for span in report["spans"]] == [watermark.payload]


def test_unmarked_file_has_its_own_status(unmarked: str, watermark: Watermark, capsys: pytest.CaptureFixture) -> None:
    assert main(["detect", unmarked]) == NOT_FOUND
    assert capsys.readouterr().out == "no mark of this key\n"
    assert main(["detect", unmarked, "--json"]) == NOT_FOUND
    report = json.loads(capsys.readouterr().out)
    assert report == {"marked": False, "payload": None, "is_default_payload": False, "spans": []}


def test_key_file_stands_for_an_earlier_key(
    marked: str, watermark: Watermark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = tmp_path / "earlier"
    earlier.write_bytes(watermark.key + b"\n")
    monkeypatch.setenv("VOICEWIRE_WATERMARK_KEY", "the key of today has 32 characters")
    assert main(["detect", marked]) == NOT_FOUND
    assert main(["detect", marked, "--key-file", str(earlier)]) == 0


def test_no_key_is_created_to_look_for(unmarked: str, data_home: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["detect", unmarked]) == WRONG_SETTINGS
    assert "watermark.key can hold it" in capsys.readouterr().err
    assert not data_home.exists()


@pytest.mark.parametrize("content", [b"short\n", b"\xff" * 40])
def test_key_file_without_a_key_is_refused(
    unmarked: str, tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture
) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    assert main(["detect", unmarked, "--key-file", str(file)]) == WRONG_SETTINGS
    assert str(file) in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"no audio", b"RIFF\x04\x00\x00\x00WAVE"])
def test_file_without_audio_is_refused(
    tmp_path: Path, watermark: Watermark, content: bytes, capsys: pytest.CaptureFixture
) -> None:
    file = tmp_path / "file.wav"
    file.write_bytes(content)
    assert main(["detect", str(file)]) == 1
    assert str(file) in capsys.readouterr().err
    assert main(["detect", str(tmp_path / "absent.wav")]) == 1


def test_silence_has_no_mark(tmp_path: Path, watermark: Watermark) -> None:
    file = tmp_path / "silence.wav"
    file.write_bytes(wav_file(np.zeros(RATE, np.float32), RATE))
    assert main(["detect", str(file)]) == NOT_FOUND
