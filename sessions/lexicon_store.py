"""Lexicons on disk, as ``OwnedFiles``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path

import msgspec

from engine.api import InvalidRequest
from sessions.errors import LimitExceeded
from sessions.owned_files import OwnedFiles, Version, version_of, warn_unreadable
from sessions.text.lexicons.lexicon import Lexicon
from sessions.voices.voice import NAME, SHARED, check_name

SUFFIX = ".json"
# Beside the voices of keys.
LEXICON_FOLDER = "lexicons"
MAX_LEXICONS = 10_000
MAX_LEXICONS_PER_KEY = 100
MAX_CACHED_LEXICONS = 64
# Of one response.
MAX_NAMED_LEXICONS = 4


class UnknownLexicon(InvalidRequest):
    code = "unknown_lexicon"


class LexiconManifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    # Name of the API key that stored it.
    owner: str = SHARED
    language: str = ""
    num_entries: int = 0
    # Entries of the file that were left out: they have a phonetic form alone.
    num_left_out: int = 0
    # Seconds since 1970.
    created_s: int = 0


class StoredLexicon(msgspec.Struct, frozen=True, kw_only=True):
    manifest: LexiconManifest
    lexicon: Lexicon


class _LexiconHeader(msgspec.Struct, frozen=True):
    manifest: LexiconManifest


class LexiconStore:
    """Methods other than ``find`` may take milliseconds: call them in a worker thread."""

    def __init__(self, folder: Path) -> None:
        self._files = OwnedFiles(folder, SUFFIX)
        self._lexicons: dict[Path, tuple[Version, StoredLexicon]] = {}

    def find(self, owner: str, name: str) -> StoredLexicon | None:
        """Find a lexicon with one look at the disk; the file is read only when it has changed."""
        path = self._files.path(owner, name)
        if not NAME.fullmatch(name) or (version := version_of(path)) is None:
            return None
        known = self._lexicons.get(path)
        if known is None or known[0] != version:
            known = self._read(path, version)
        return None if known is None else known[1]

    def find_all(self, owner: str, names: Sequence[str]) -> tuple[Lexicon, ...]:
        """Return lexicons of a key, or those that all share. Raises ``UnknownLexicon``."""
        return tuple(self._find_one(owner, name).lexicon for name in names)

    def list(self, owner: str) -> list[LexiconManifest]:
        """List the lexicons of an owner by name; files that cannot be read are left out."""
        manifests = filter(None, map(self._manifest, self._files.list(self._files.folder_of(owner))))
        return sorted(manifests, key=attrgetter("name"))

    def put(self, stored: StoredLexicon) -> None:
        """Store a lexicon durably, in place of one of its name. Responses that have begun keep theirs.

        Raises ``InvalidRequest``, ``LimitExceeded`` or ``OSError``; then nothing has changed."""
        manifest = stored.manifest
        check_name(manifest.name)
        path = self._files.path(manifest.owner, manifest.name)
        with self._files.writing():
            if not path.exists():
                self._check_capacity(manifest.owner)
            self._files.write(path, msgspec.json.encode(stored))

    def remove(self, owner: str, name: str) -> bool:
        """Delete a lexicon, and return whether it existed."""
        path = self._files.path(owner, name)
        if not NAME.fullmatch(name) or not self._files.remove(path):
            return False
        self._lexicons.pop(path, None)
        return True

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

    def _manifest(self, file: os.DirEntry[str]) -> LexiconManifest | None:
        try:
            return msgspec.json.decode(Path(file.path).read_bytes(), type=_LexiconHeader).manifest
        except (msgspec.DecodeError, UnicodeError, OSError) as error:
            warn_unreadable(file.name, error)
            return None

    def _read(self, path: Path, version: Version) -> tuple[Version, StoredLexicon] | None:
        try:
            known = (version, msgspec.json.decode(path.read_bytes(), type=StoredLexicon))
        except (msgspec.DecodeError, UnicodeError, OSError) as error:
            warn_unreadable(path.name, error)
            return None
        if len(self._lexicons) >= MAX_CACHED_LEXICONS:
            self._lexicons.pop(list(self._lexicons)[0], None)  # noqa: RUF015 other threads change it meanwhile
        self._lexicons[path] = known
        return known
