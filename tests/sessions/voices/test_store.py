"""Stored voices: their files, and writers that are killed."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import InvalidRequest
from sessions.errors import LimitExceeded
from sessions.owned_files import TEMP_SUFFIX
from sessions.voices.store import VoiceExists, VoiceStore
from sessions.voices.voice import SHARED, VoiceManifest, check_manifest
from sessions.voices.voice_file import CorruptVoiceFile, read_manifest, read_voice, to_bytes
from tests.sessions.voices.voices import NUM_CODEBOOKS, voice


@pytest.fixture
def store(tmp_path: Path) -> VoiceStore:
    return VoiceStore(tmp_path / "voices")


def add(store: VoiceStore, name: str, owner: str = "alice") -> None:
    store.add(voice(name, owner))


def test_a_voice_comes_back_as_it_was_also_in_another_process(store: VoiceStore, tmp_path: Path) -> None:
    by_vector_alone = voice("ben", num_frames=0)
    add(store, "ann")
    store.add(by_vector_alone)
    for reader in (store, VoiceStore(tmp_path / "voices")):
        assert reader.find("alice", "ann") == voice("ann")
        assert reader.find("alice", "ben") == by_vector_alone
        assert reader.list("alice") == [voice("ann").manifest, by_vector_alone.manifest]


def test_the_mel_of_a_voice_comes_back_with_its_codes(store: VoiceStore, tmp_path: Path) -> None:
    plain = voice("ann")
    mel = b"\0\0\x80?" * (2 * 80 * len(plain.clone.codes) // (2 * NUM_CODEBOOKS))
    with_mel = replace(plain, clone=msgspec.structs.replace(plain.clone, mel=mel))
    store.add(with_mel)
    assert VoiceStore(tmp_path / "voices").find("alice", "ann") == with_mel


def test_nothing_is_there_before_the_first(store: VoiceStore) -> None:
    assert store.list("alice") == []
    assert store.find("alice", "ann") is None
    assert not store.remove("alice", "ann")


def test_keys_do_not_see_each_other(store: VoiceStore) -> None:
    owners = ("alice", "bob", SHARED, "..", "a/b", "../alice", "ö ü", "key-alice")
    for owner in owners:
        add(store, "same", owner)
    for owner in owners:
        assert [manifest.owner for manifest in store.list(owner)] == [owner]
        assert store.find(owner, "same").manifest.owner == owner  # type: ignore[union-attr]
    assert store.remove("bob", "same")
    assert store.find("bob", "same") is None
    assert store.find("alice", "same") is not None


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "-a", "a b", "a" * 65, "ä", "a\0b", ".lock", "a\n"])
def test_strange_names_find_nothing_and_are_refused(store: VoiceStore, name: str) -> None:
    assert store.find("alice", name) is None
    assert not store.remove("alice", name)
    with pytest.raises(InvalidRequest, match="name must be 1 to 64") as refused:
        check_manifest(VoiceManifest(name=name, consent="yes"))
    assert refused.value.param == "name"


@pytest.mark.parametrize("field", ["consent", "description", "transcript"])
def test_long_fields_are_refused_by_name(field: str) -> None:
    manifest = VoiceManifest(**({"name": "a", "consent": "yes"} | {field: "x" * 2_001}))
    with pytest.raises(InvalidRequest, match=f"{field} has 2001 characters, at most 2000") as refused:
        check_manifest(manifest)
    assert refused.value.param == field


def test_without_consent_there_is_no_voice() -> None:
    with pytest.raises(InvalidRequest, match="consent is empty"):
        check_manifest(VoiceManifest(name="a", consent=" "))


def test_a_taken_name_is_refused_and_free_again_after_a_removal(store: VoiceStore) -> None:
    add(store, "ann")
    with pytest.raises(VoiceExists, match="ann"):
        store.add(voice("ann", num_frames=3))
    assert store.find("alice", "ann") == voice("ann")
    assert store.remove("alice", "ann")
    assert not store.remove("alice", "ann")
    assert store.list("alice") == []
    store.add(voice("ann", num_frames=3))
    assert store.find("alice", "ann") == voice("ann", num_frames=3)


def test_another_process_that_replaces_a_voice_is_noticed(store: VoiceStore, tmp_path: Path) -> None:
    other = VoiceStore(tmp_path / "voices")
    add(store, "ann")
    assert other.find("alice", "ann") == voice("ann")
    assert other.list("alice")
    store.remove("alice", "ann")
    store.add(voice("ann", num_frames=2, transcript="other words"))
    assert other.find("alice", "ann") == voice("ann", num_frames=2, transcript="other words")
    assert other.list("alice")[0].transcript == "other words"


def test_limits_are_named(tmp_path: Path) -> None:
    store = VoiceStore(tmp_path, max_voices=3, max_voices_per_key=2)
    add(store, "a")
    add(store, "b")
    with pytest.raises(LimitExceeded, match="max_voices_per_key is 2"):
        add(store, "c")
    add(store, "c", "bob")
    with pytest.raises(LimitExceeded, match="max_voices is 3"):
        add(store, "d", "bob")
    store.remove("alice", "a")
    add(store, "d", "bob")


@pytest.mark.parametrize("num_writers", [2, 8])
def test_of_two_uploads_of_one_name_at_once_one_wins(tmp_path: Path, num_writers: int) -> None:
    start = threading.Barrier(num_writers)

    def write(number: int) -> int | None:
        start.wait()
        try:
            VoiceStore(tmp_path).add(voice("ann", num_frames=number + 1))
        except VoiceExists:
            return None
        return number

    with ThreadPoolExecutor(num_writers) as pool:
        outcomes = list(pool.map(write, range(num_writers)))
    (winner,) = [outcome for outcome in outcomes if outcome is not None]
    assert VoiceStore(tmp_path).find("alice", "ann") == voice("ann", num_frames=winner + 1)


def test_a_disk_that_fails_leaves_nothing(store: VoiceStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(_: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="no space left"):
        add(store, "ann")
    assert store.list("alice") == []
    assert not list(tmp_path.rglob(f"*{TEMP_SUFFIX}"))


def test_stopped_writer_does_not_block_all(store: VoiceStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sessions.owned_files.MAX_WAIT_S", 0.05)
    add(store, "ann")
    with (tmp_path / "voices" / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError, match="another process"):
            add(store, "ben")
        assert [manifest.name for manifest in store.list("alice")] == ["ann"]
    add(store, "ben")


def test_what_is_no_voice_is_left_out(store: VoiceStore, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    add(store, "ann")
    folder = tmp_path / "voices" / "key-alice"
    (folder / "junk.safetensors").write_bytes(b"not a voice at all")
    (folder / f"half.safetensors{TEMP_SUFFIX}").write_bytes(b"half")
    (folder / "notes.txt").write_text("hello")
    assert [manifest.name for manifest in store.list("alice")] == ["ann"]
    assert store.find("alice", "junk") is None
    assert store.find("alice", "half") is None
    assert "hello there" not in caplog.text
    add(store, "ben")
    assert not (folder / f"half.safetensors{TEMP_SUFFIX}").exists()


def test_files_are_for_their_owner_alone(store: VoiceStore, tmp_path: Path) -> None:
    add(store, "ann")
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "voices").rglob("*")}
    assert modes == {"key-alice": 0o700, "ann.safetensors": 0o600, ".lock": 0o600}


@given(st.data())
def test_any_damage_is_noticed_as_such(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    whole = to_bytes(voice("ann"))
    cut = data.draw(st.integers(0, len(whole) - 1))
    flipped = data.draw(st.integers(0, 200))
    broken = whole[:flipped] + bytes([whole[flipped] ^ data.draw(st.integers(1, 255))]) + whole[flipped + 1 :]
    path = tmp_path_factory.mktemp("damaged") / "ann.safetensors"
    for content in (whole[:cut], broken):
        path.write_bytes(content)
        for read in (read_voice, lambda path: read_manifest(str(path))):
            try:
                read(path)
            except CorruptVoiceFile:
                continue
    path.write_bytes(whole[:cut])
    with pytest.raises(CorruptVoiceFile):
        read_voice(path)


def test_a_type_that_numpy_has_not_breaks_that_file_alone(store: VoiceStore, tmp_path: Path) -> None:
    add(store, "ann")
    path = next((tmp_path / "voices").glob("*/ann.safetensors"))
    (num_bytes,) = struct.unpack_from("<Q", whole := path.read_bytes())
    path.write_bytes(struct.pack("<Q", num_bytes + 1) + whole[8:].replace(b'"I16"', b'"BF16"'))
    with pytest.raises(CorruptVoiceFile):
        read_voice(path)
    assert store.find("alice", "ann") is None


def test_a_long_header_is_read_in_full(tmp_path: Path) -> None:
    long = voice("ann", transcript="\u4f60\u597d" * 900)
    path = tmp_path / "ann.safetensors"
    path.write_bytes(to_bytes(long))
    assert read_manifest(str(path)) == long.manifest


ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("num_kills", [64, pytest.param(200, marks=pytest.mark.slow)])
def test_kills_in_mid_write_leave_whole_voices(tmp_path: Path, num_kills: int) -> None:
    command = [sys.executable, "-m", "tests.sessions.voices.crash_writers", str(tmp_path), str(num_kills)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True, timeout=110)
    reported = json.loads(done.stdout)
    store = VoiceStore(tmp_path)
    names = [manifest.name for manifest in store.list("alice")]
    assert reported["num_halves"] > num_kills // 10, "the kills came when nothing was being written"
    assert len(reported["stored"]) >= num_kills // 8
    assert {path.stem for path in tmp_path.glob("*/*.safetensors")} == set(names), "half a voice"
    assert set(reported["stored"]) <= set(names)
    assert len(names) - len(reported["stored"]) <= num_kills, "at most one a writer had no time to say so"
    for name in names:
        assert store.find("alice", name) == voice(name)
    store.add(voice("after"))
    assert not list(tmp_path.glob(f"*/*{TEMP_SUFFIX}"))
