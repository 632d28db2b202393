"""Lexicons on disk: whole or not at all, read again when they change, within limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.api import InvalidRequest
from sessions import lexicon_store
from sessions.errors import LimitExceeded
from sessions.lexicon_store import MAX_VERSIONS, LexiconManifest, LexiconRecord, LexiconStore, UnknownLexicon
from sessions.text.lexicons.files import ParsedLexicon
from sessions.text.lexicons.lexicon import MAX_ENTRIES, LexiconEntry
from sessions.voices.voice import SHARED


def stored(name: str = "one", alias: str = "b", owner: str = "ann") -> LexiconRecord:
    entries = [LexiconEntry(text="a", alias=alias), LexiconEntry(text="C D", alias="e")]
    return LexiconRecord.build(LexiconManifest(name=name, owner=owner), ParsedLexicon("en", entries))


def test_lexicon_is_found_by_another_process_as_it_was_stored(tmp_path: Path):
    record = stored()
    LexiconStore(tmp_path).put(record)
    other = LexiconStore(tmp_path)
    found = other.find("ann", "one")
    assert found is not None
    assert (found.manifest, found.lexicon) == (record.manifest, record.lexicon)
    assert other.read("ann", "one") == record
    assert other.list("ann") == [record.manifest]
    assert other.find("bob", "one") is None


def test_versions_keep_their_content(tmp_path: Path):
    store = LexiconStore(tmp_path)
    first, second = stored(), stored(alias="c")
    for record in (first, second):
        store.put(record)
    assert store.find_all("ann", [f"one@{first.manifest.version}", "one"]) == (first.lexicon, second.lexicon)
    assert {each.version for each in store.versions("ann", "one")} == {
        first.manifest.version,
        second.manifest.version,
    }
    assert [each.version for each in store.list("ann")] == [second.manifest.version]
    assert store.remove("ann", "one")
    assert store.versions("ann", "one") == ()
    assert store.find("ann", f"one@{first.manifest.version}") is None


def test_oldest_versions_are_deleted(tmp_path: Path):
    store = LexiconStore(tmp_path)
    records = [stored(alias=f"b{number}") for number in range(MAX_VERSIONS + 2)]
    for record in records:
        store.put(record)
    assert len(store.versions("ann", "one")) == MAX_VERSIONS
    assert store.find("ann", f"one@{records[-1].manifest.version}") is not None


@pytest.mark.parametrize("name", ["one@", "one@nope", "one@../../one", "one@0123456789ab"])
def test_unknown_version_is_not_found(tmp_path: Path, name: str):
    store = LexiconStore(tmp_path)
    store.put(stored())
    assert store.find("ann", name) is None
    assert store.read("ann", name) is None


def test_edit_changes_what_is_stored(tmp_path: Path):
    store = LexiconStore(tmp_path)
    store.put(stored())
    manifest = store.edit("ann", "one", lambda record: stored(alias=record.lexicon.folded["a"] + "!"))
    assert manifest is not None
    assert store.find_all("ann", [f"one@{manifest.version}"])[0].folded["a"] == "b!"
    assert store.edit("ann", "two", lambda record: record) is None


def test_replaced_lexicon_is_read_again(tmp_path: Path):
    first, second = LexiconStore(tmp_path), LexiconStore(tmp_path)
    first.put(stored())
    [before] = second.find_all("ann", ["one"])
    first.put(stored(alias="c"))
    [after] = second.find_all("ann", ["one"])
    assert (before.folded["a"], after.folded["a"]) == ("b", "c")
    assert first.remove("ann", "one")
    assert not first.remove("ann", "one")
    assert second.find("ann", "one") is None


def test_shared_lexicons_serve_every_key_and_own_ones_come_first(tmp_path: Path):
    store = LexiconStore(tmp_path)
    store.put(stored(alias="shared", owner=SHARED))
    assert store.find_all("ann", ["one"])[0].folded["a"] == "shared"
    store.put(stored(alias="own"))
    assert store.find_all("ann", ["one"])[0].folded["a"] == "own"
    with pytest.raises(UnknownLexicon, match="lexicon 'two' is unknown"):
        store.find_all("ann", ["one", "two"])


@pytest.mark.parametrize("name", ["", ".one", "a/b", "../one", "x" * 65])
def test_name_is_checked(tmp_path: Path, name: str):
    store = LexiconStore(tmp_path)
    with pytest.raises(InvalidRequest, match="name must be"):
        store.put(stored(name))
    assert store.find("ann", name) is None
    assert not store.remove("ann", name)


def test_number_of_lexicons_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lexicon_store, "MAX_LEXICONS_PER_KEY", 2)
    monkeypatch.setattr(lexicon_store, "MAX_LEXICONS", 3)
    store = LexiconStore(tmp_path)
    for name in ("one", "two", "one"):
        store.put(stored(name))
    with pytest.raises(LimitExceeded, match="there are 2 lexicons of this key, at most 2"):
        store.put(stored("three"))
    store.put(stored(owner="bob"))
    with pytest.raises(LimitExceeded, match="there are 3 lexicons, at most 3"):
        store.put(stored(owner="cyd"))


def test_unreadable_file_is_passed_over(tmp_path: Path):
    store = LexiconStore(tmp_path)
    store.put(stored())
    (tmp_path / "key-ann" / "one.json").write_text('{"manifest": {"name": "one"')
    assert store.find("ann", "one") is None
    assert store.list("ann") == []


def test_largest_lexicon_is_stored_and_found(tmp_path: Path):
    entries = [LexiconEntry(text=f"word {number}", alias="x") for number in range(MAX_ENTRIES)]
    record = LexiconRecord.build(LexiconManifest(name="big", owner="ann"), ParsedLexicon("", entries))
    store = LexiconStore(tmp_path)
    store.put(record)
    assert LexiconStore(tmp_path).find_all("ann", ["big"]) == (record.lexicon,)
