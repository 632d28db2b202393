"""The files that all gateways of a cluster have: stored voices and lexicons, and the commands that change them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from engine.api import ErrorInfo
from sessions.lexicon_store import LEXICON_FOLDER, LexiconRecord, LexiconStore
from sessions.lexicon_store import SUFFIX as LEXICON_SUFFIX
from sessions.lexicon_store import VERSION_SUFFIX as LEXICON_VERSION_SUFFIX
from sessions.owned_files import OwnedFiles, Version
from sessions.voices.store import SUFFIX as VOICE_SUFFIX
from sessions.voices.store import VoiceStore
from sessions.voices.voice_file import parse_voice


class FileKey(NamedTuple):
    kind: str
    owner: str
    name: str


class FileChange(Struct, frozen=True):
    key: FileKey
    # Content of the file; ``None`` when it has gone.
    data: bytes | None
    # Time of its change, by which versions of a lexicon are sorted.
    changed_ns: int = 0


class StoredFiles:
    """The files in a folder of voices, and in its folder of lexicons. Methods may run concurrently."""

    def __init__(self, folder: Path) -> None:
        lexicons = folder / LEXICON_FOLDER
        self._kinds = {
            "voice": OwnedFiles(folder, VOICE_SUFFIX),
            "lexicon version": OwnedFiles(lexicons, LEXICON_VERSION_SUFFIX),
            "lexicon": OwnedFiles(lexicons, LEXICON_SUFFIX),
        }

    def versions(self) -> dict[FileKey, Version]:
        return {
            FileKey(kind, owner, name): version
            for kind, files in self._kinds.items()
            for (owner, name), version in files.versions().items()
        }

    def read(self, key: FileKey) -> FileChange:
        """Return the file as the change that creates it, or the one that deletes it."""
        path = self._path(key)
        try:
            changed_ns = path.stat().st_mtime_ns
            return FileChange(key, path.read_bytes(), changed_ns)
        except OSError:
            return FileChange(key, None)

    def apply(self, change: FileChange) -> None:
        """Replace or delete a file. Raises ``OSError``."""
        path = self._path(change.key)
        files = self._kinds[change.key.kind]
        if change.data is None:
            files.remove(path)
            return
        with files.writing():
            files.write(path, change.data)
            os.utime(path, ns=(change.changed_ns, change.changed_ns))

    def _path(self, key: FileKey) -> Path:
        return self._kinds[key.kind].path(key.owner, key.name)


class PutVoice(Struct, frozen=True, tag=True):
    data: bytes
    max_voices: int
    max_voices_per_key: int


class RemoveVoice(Struct, frozen=True, tag=True):
    owner: str
    name: str


class PutLexicon(Struct, frozen=True, tag=True):
    """``replaced`` is the only version that it may take the place of; without it any."""

    data: bytes
    replaced: str | None = None


class RemoveLexicon(Struct, frozen=True, tag=True):
    owner: str
    name: str


FileCommand = PutVoice | RemoveVoice | PutLexicon | RemoveLexicon


class FileOutcome(Struct, frozen=True):
    """``error`` of a command that failed; else whether there was such a file."""

    existed: bool = False
    error: ErrorInfo | None = None
    # Content of a lexicon that has another version than the one to be replaced.
    current: bytes | None = None


class OtherVersion(Exception):
    """Raised for an edit of a lexicon that another one has changed meanwhile."""

    def __init__(self, current: LexiconRecord) -> None:
        super().__init__()
        self.current = current


def carry_out(command: FileCommand, folder: Path) -> FileOutcome:
    """Change the files of a folder. Raises ``SpeechError`` or ``OSError``; then nothing has changed."""
    lexicons = LexiconStore(folder / LEXICON_FOLDER)
    match command:
        case PutVoice(data, max_voices, max_voices_per_key):
            VoiceStore(folder, max_voices, max_voices_per_key).add(parse_voice(data))
            return FileOutcome()
        case RemoveVoice(owner, name):
            return FileOutcome(VoiceStore(folder).remove(owner, name))
        case PutLexicon(data, None):
            lexicons.put(parse_lexicon_record(data))
            return FileOutcome()
        case PutLexicon(data, replaced):
            return _replace(lexicons, parse_lexicon_record(data), replaced)
        case RemoveLexicon(owner, name):
            return FileOutcome(lexicons.remove(owner, name))


def _replace(lexicons: LexiconStore, record: LexiconRecord, replaced: str | None) -> FileOutcome:
    def change(current: LexiconRecord) -> LexiconRecord:
        if current.manifest.version != replaced:
            raise OtherVersion(current)
        return record

    try:
        return FileOutcome(lexicons.edit(record.manifest.owner, record.manifest.name, change) is not None)
    except OtherVersion as error:
        return FileOutcome(current=msgspec.json.encode(error.current))


def parse_lexicon_record(data: bytes) -> LexiconRecord:
    return msgspec.json.decode(data, type=LexiconRecord)
