"""Lexicons on disk, as ``OwnedFiles``."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from engine.api import InvalidRequest
from sessions.errors import LimitExceeded
from sessions.owned_files import FileCache, OwnedFiles, warn_unreadable
from sessions.text.lexicons.lexicon import Lexicon, LexiconEntry
from sessions.voices.voice import NAME, SHARED, check_name

if TYPE_CHECKING:
    from sessions.text.lexicons.files import ParsedLexicon

T = TypeVar("T")
SUFFIX = ".json"
VERSION_SUFFIX = ".version"
# Beside the voices of keys.
LEXICON_FOLDER = "lexicons"
MAX_LEXICONS = 10_000
MAX_LEXICONS_PER_KEY = 100
MAX_CACHED_LEXICONS = 64
# Of one lexicon; the oldest are deleted.
MAX_VERSIONS = 10
# Of one response.
MAX_NAMED_LEXICONS = 4
_VERSION_CHARS = 12
_VERSION = re.compile(rf"[0-9a-f]{{{_VERSION_CHARS}}}")
_UNREADABLE = (msgspec.DecodeError, UnicodeError)


class UnknownLexicon(InvalidRequest):
    code = "unknown_lexicon"


class LexiconManifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    # Name of the API key that stored it.
    owner: str = SHARED
    # Tells one content from another.
    version: str = ""
    language: str = ""
    num_entries: int = 0
    # Entries of the file that were left out: no model here reads them.
    num_left_out: int = 0
    # Seconds since 1970.
    created_s: int = 0
    # For people.
    title: str = ""
    description: str = ""


class StoredLexicon(msgspec.Struct, frozen=True, kw_only=True):
    """What speech needs of a file."""

    manifest: LexiconManifest
    lexicon: Lexicon


class LexiconRecord(StoredLexicon, frozen=True, kw_only=True):
    """A whole file, with the entries as they were given."""

    entries: list[LexiconEntry] = []

    @classmethod
    def build(cls, manifest: LexiconManifest, parsed: ParsedLexicon) -> LexiconRecord:
        """Complete a manifest, which gives name and owner. Raises ``InvalidRequest``."""
        lexicon = parsed.build()
        content = msgspec.json.encode((lexicon.language, parsed.entries))
        manifest = msgspec.structs.replace(
            manifest,
            version=hashlib.sha256(content).hexdigest()[:_VERSION_CHARS],
            language=lexicon.language,
            num_entries=lexicon.num_entries,
            num_left_out=len(parsed.entries) - lexicon.num_entries,
            created_s=int(time.time()),
        )
        return cls(manifest=manifest, lexicon=lexicon, entries=parsed.entries)


class _LexiconHeader(msgspec.Struct, frozen=True):
    manifest: LexiconManifest


class LexiconStore:
    """Methods other than ``find`` may take milliseconds: call them in a worker thread.

    A ``name`` may be NAME@VERSION where one lexicon is read."""

    def __init__(self, folder: Path) -> None:
        self._files = OwnedFiles(folder, SUFFIX)
        # Earlier contents, and the current one once more.
        self._versions = OwnedFiles(folder, VERSION_SUFFIX)
        self._lexicons = FileCache(_read_lexicon, _UNREADABLE, MAX_CACHED_LEXICONS)

    def find(self, owner: str, name: str) -> StoredLexicon | None:
        """Find a lexicon with one look at the disk; the file is read only when it has changed."""
        path = self._path(owner, name)
        return None if path is None else self._lexicons.get(path)

    def find_all(self, owner: str, names: Sequence[str]) -> tuple[Lexicon, ...]:
        """Return lexicons of a key, or those that all share. Raises ``UnknownLexicon``."""
        return tuple(self._find_one(owner, name).lexicon for name in names)

    def read(self, owner: str, name: str) -> LexiconRecord | None:
        """Read all that is stored of a lexicon."""
        path = self._path(owner, name)
        return None if path is None else _read_file(path, LexiconRecord)

    def list(self, owner: str) -> list[LexiconManifest]:
        """List the lexicons of an owner by name; files that cannot be read are left out."""
        files = self._files.list(self._files.folder_of(owner))
        return sorted(_manifests(files), key=attrgetter("name"))

    def versions(self, owner: str, name: str) -> Sequence[LexiconManifest]:
        """List the contents that a lexicon had, the newest first."""
        return tuple(_manifests(self._version_files(owner, name)))

    def put(self, record: LexiconRecord) -> None:
        """Store a lexicon durably, in place of one of its name. Responses that have begun keep theirs.

        Raises ``InvalidRequest``, ``LimitExceeded`` or ``OSError``; then nothing has changed."""
        check_name(record.manifest.name)
        with self._files.writing():
            self._write(record)

    def edit(self, owner: str, name: str, change: Callable[[LexiconRecord], LexiconRecord]) -> LexiconManifest | None:
        """Store what ``change`` makes of a lexicon; concurrent edits follow each other. ``None`` if it is unknown.

        Raises as ``put``, and what ``change`` raises."""
        if not NAME.fullmatch(name):
            return None
        with self._files.writing():
            record = _read_file(self._files.path(owner, name), LexiconRecord)
            if record is None:
                return None
            record = change(record)
            self._write(record)
        return record.manifest

    def remove(self, owner: str, name: str) -> bool:
        """Delete a lexicon with its versions, and return whether it existed."""
        path = self._files.path(owner, name)
        if not NAME.fullmatch(name) or not self._files.remove(path):
            return False
        self._lexicons.remove(path)
        for file in self._version_files(owner, name):
            Path(file).unlink(missing_ok=True)
            self._lexicons.remove(Path(file))
        return True

    def _path(self, owner: str, name: str) -> Path | None:
        name, mark, version = name.partition("@")
        if not NAME.fullmatch(name) or (mark and not _VERSION.fullmatch(version)):
            return None
        return self._versions.path(owner, f"{name}@{version}") if mark else self._files.path(owner, name)

    def _version_files(self, owner: str, name: str) -> Sequence[os.DirEntry[str]]:
        """The newest first."""
        files = self._versions.list(self._versions.folder_of(owner))
        own = [file for file in files if file.name.startswith(f"{name}@")]
        return sorted(own, key=_changed_ns, reverse=True)

    def _write(self, record: LexiconRecord) -> None:
        """Within ``writing``."""
        manifest, data = record.manifest, msgspec.json.encode(record)
        path = self._files.path(manifest.owner, manifest.name)
        if not path.exists():
            self._check_capacity(manifest.owner)
        version_path = self._versions.path(manifest.owner, f"{manifest.name}@{manifest.version}")
        self._versions.write(version_path, data)
        self._files.write(path, data)
        files = map(Path, self._version_files(manifest.owner, manifest.name))
        for file in [file for file in files if file != version_path][MAX_VERSIONS - 1 :]:
            file.unlink(missing_ok=True)

    def _find_one(self, owner: str, name: str) -> StoredLexicon:
        found = self.find(owner, name) or self.find(SHARED, name)
        if found is None:
            raise UnknownLexicon(f"lexicon {name[:80]!r} is unknown", "lexicons")
        return found

    def _check_capacity(self, owner: str) -> None:
        num_own, num_all = len(self._files.list(self._files.folder_of(owner))), self._files.count_all()
        if num_own >= MAX_LEXICONS_PER_KEY:
            raise LimitExceeded(f"there are {num_own} lexicons of this key, at most {MAX_LEXICONS_PER_KEY}", "name")
        if num_all >= MAX_LEXICONS:
            raise LimitExceeded(f"there are {num_all} lexicons, at most {MAX_LEXICONS}", "name")


def _manifests(files: Iterable[os.DirEntry[str]]) -> Iterator[LexiconManifest]:
    for file in files:
        header = _read_file(Path(file), _LexiconHeader)
        if header is not None:
            yield header.manifest


def _changed_ns(file: os.DirEntry[str]) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:  # deleted meanwhile
        return 0


def _read_file(path: Path, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (*_UNREADABLE, OSError) as error:
        warn_unreadable(path.name, error)
        return None


def _read_lexicon(path: Path) -> StoredLexicon:
    return msgspec.json.decode(path.read_bytes(), type=StoredLexicon)
