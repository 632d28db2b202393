from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from realtime.cli import main
from sessions.audio.wav import wav_file
from sessions.voices.store import VoiceStore
from sessions.voices.voice import SHARED
from tests.fakes.engine import FakeSpeechEngine
from tests.realtime.live_server import EMBEDDING_SIZE, cloning_engine
from tests.sessions.audio.signals import tone

CONSENT = ("--consent", "she agreed on 1 May")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeSpeechEngine:
    """What commands get for an engine."""
    engine = cloning_engine()
    monkeypatch.setitem(sys.modules, "engine.launch", SimpleNamespace(create_engine=lambda model, **settings: engine))
    return engine


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VOICEWIRE_VOICES_FOLDER", str(tmp_path / "voices"))
    return tmp_path / "voices"


@pytest.fixture
def wav(tmp_path: Path) -> str:
    path = tmp_path / "ann.wav"
    path.write_bytes(wav_file(tone(1.5, 16_000), 16_000))
    return str(path)


def numbers(tmp_path: Path, name: str, *values: float) -> str:
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps([*values, *[0.0] * (EMBEDDING_SIZE - len(values))]))
    return str(path)


def test_every_voice_has_its_line(engine: FakeSpeechEngine, folder: Path, capsys: pytest.CaptureFixture) -> None:
    for command in (["voices"], ["voices", "list"]):
        assert main(command) == 0
        assert capsys.readouterr().out.splitlines() == ["ada  en      a low hum", "ben  en, de  a higher hum"]
    assert not engine.is_alive
    assert not folder.exists()


def test_stored_voice_life_cycle(
    engine: FakeSpeechEngine, folder: Path, wav: str, capsys: pytest.CaptureFixture
) -> None:
    about = ("--description", "warm", "--transcript", "Hello there.")
    assert main(["voices", "add", "ann", wav, *CONSENT, *about]) == 0
    stored = VoiceStore(folder).find(SHARED, "ann")
    assert stored is not None
    assert (stored.manifest.transcript, stored.manifest.sample_s, stored.manifest.model) == (
        "Hello there.",
        1.5,
        "a fake base",
    )
    assert engine.samples[0].transcript == "Hello there."
    assert main(["voices", "list"]) == 0
    assert "ann  *       warm" in capsys.readouterr().out.splitlines()
    assert main(["voices", "add", "ann", wav, *CONSENT]) == 1
    assert "exists already" in capsys.readouterr().err
    assert main(["voices", "remove", "ann"]) == 0
    assert main(["voices", "remove", "ann"]) == 1
    assert VoiceStore(folder).list(SHARED) == []


@pytest.mark.parametrize("behind", [True, False])
def test_voices_folder_is_accepted_before_and_after_action(
    engine: FakeSpeechEngine, folder: Path, tmp_path: Path, wav: str, behind: bool
) -> None:
    where = ["--model", "a-folder", "--folder", str(tmp_path / "elsewhere"), "--key-name", "alice"]
    add, remove = ["add", "ann", wav, *CONSENT], ["remove", "ann"]
    assert main(["voices", *add, *where] if behind else ["voices", *where, *add]) == 0
    assert VoiceStore(tmp_path / "elsewhere").find("alice", "ann")
    assert main(["voices", *remove, *where] if behind else ["voices", *where, *remove]) == 0
    assert not folder.exists()


def test_configuration_file_gives_voices_folder(
    engine: FakeSpeechEngine, tmp_path: Path, wav: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VOICEWIRE_VOICES_FOLDER", raising=False)
    (tmp_path / "server.toml").write_text(f'[voices]\nfolder = "{tmp_path / "there"}"\n')
    assert main(["voices", "add", "ann", wav, *CONSENT, "--config", str(tmp_path / "server.toml")]) == 0
    assert VoiceStore(tmp_path / "there").find(SHARED, "ann")


def test_unusable_settings_are_reported(
    engine: FakeSpeechEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    assert main(["voices", "--config", "nowhere.toml"]) == 2
    assert "nowhere.toml" in capsys.readouterr().err
    monkeypatch.setenv("VOICEWIRE_VOICES_MAX_VOICES", "many")
    assert main(["voices"]) == 2
    assert "voices.max_voices = 'many'" in capsys.readouterr().err


def test_voices_blend(engine: FakeSpeechEngine, folder: Path, tmp_path: Path) -> None:
    for name, values in (("one", (4.0, 0.0)), ("two", (0.0, 4.0))):
        assert main(["voices", "add", name, numbers(tmp_path, name, *values), *CONSENT]) == 0
    assert main(["voices", "blend", "both", "one", "two", "--weight", "0.5", *CONSENT]) == 0
    both = VoiceStore(folder).find(SHARED, "both")
    assert both is not None
    mixed = np.frombuffer(both.clone.embedding, np.float32)
    np.testing.assert_allclose(mixed[:2], [8**0.5] * 2, rtol=1e-5)
    assert (both.manifest.source, both.manifest.model) == ("blend", "a fake base")


def test_embedding_of_recording_is_printed_or_written(
    engine: FakeSpeechEngine, folder: Path, wav: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert main(["voices", "embed", wav]) == 0
    printed = json.loads(capsys.readouterr().out)
    file = tmp_path / "ann.json"
    assert main(["voices", "embed", wav, "-o", str(file)]) == 0
    assert f"{EMBEDDING_SIZE} numbers" in capsys.readouterr().out
    assert json.loads(file.read_text()) == printed
    assert main(["voices", "add", "ann", str(file), *CONSENT]) == 0
    assert main(["voices", "add", "same", wav, *CONSENT]) == 0
    ann, same = (VoiceStore(folder).find(SHARED, name) for name in ("ann", "same"))
    assert ann is not None
    assert same is not None
    assert ann.clone.embedding == same.clone.embedding
    assert not engine.is_alive


def test_a_voice_may_belong_to_a_key(engine: FakeSpeechEngine, tmp_path: Path) -> None:
    where = ["voices", "--folder", str(tmp_path / "elsewhere"), "--key-name", "agent"]
    assert main([*where, "add", "ann", numbers(tmp_path, "ann", 1.0), *CONSENT]) == 0
    store = VoiceStore(tmp_path / "elsewhere")
    assert (len(store.list("agent")), len(store.list(SHARED))) == (1, 0)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["add", "ada", "WAV", *CONSENT], "belongs to the model"),
        (["add", "a/b", "WAV", *CONSENT], "name must be 1 to 64"),
        (["add", "ann", "WAV", "--consent", ""], "consent is empty"),
        (["add", "ann", "nowhere.wav", *CONSENT], "nowhere.wav"),
        (["add", "ann", "BAD", *CONSENT], "no JSON list of numbers"),
        (["add", "ann", "WAV", "--transcript", "x" * 2_001, *CONSENT], "2001 characters"),
        (["blend", "ann", "one", "two", *CONSENT], "no voice 'one' is stored"),
        (["remove", "../x"], "no voice"),
        (["embed", "nowhere.wav"], "nowhere.wav"),
        (["embed", "BAD"], "audio is neither of wav"),
        (["embed", "WAV", "-o", "no/such/file.json"], "no/such/file.json"),
    ],
)
def test_impossible_request_is_reported(
    engine: FakeSpeechEngine,
    folder: Path,
    wav: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    command: list[str],
    words: str,
) -> None:
    (tmp_path / "bad.json").write_text("{}")
    files = {"WAV": wav, "BAD": str(tmp_path / "bad.json")}
    assert main(["voices", *(files.get(word, word) for word in command)]) == 1
    assert words in capsys.readouterr().err


def test_a_voice_must_have_consent(engine: FakeSpeechEngine, folder: Path, wav: str) -> None:
    with pytest.raises(SystemExit):
        main(["voices", "add", "ann", wav])
