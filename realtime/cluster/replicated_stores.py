"""Voices and lexicons of a gateway in a cluster: read from the replica's copy, changed on all replicas.

A gateway whose copy may be behind others answers with an error, never with an older file.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from engine.api import CodedError
from realtime.cluster.link import ClusterLink
from realtime.cluster.stored_files import (
    FileCommand,
    FileOutcome,
    PutLexicon,
    PutVoice,
    RemoveLexicon,
    RemoveVoice,
    parse_lexicon_record,
)
from sessions.lexicon_store import LexiconManifest, LexiconRecord, LexiconStore, StoredLexicon
from sessions.voices.store import VoiceStore
from sessions.voices.voice import NAME, StoredVoice
from sessions.voices.voice_file import to_bytes

RETRY_AFTER_MS = 1_000


class CopiedFiles:
    """The link, with the errors of one kind of files."""

    def __init__(self, link: ClusterLink, kind: str, code: str, param: str) -> None:
        self._link, self._kind, self._code, self._param = link, kind, code, param

    def check_current(self, name: str) -> None:
        """Raise ``CodedError`` if another gateway may have changed the file."""
        if not self._link.has_current_files:
            raise self._unavailable(f"{self._kind} {name[:80]!r} cannot be compared with other gateways now")

    def change(self, command: FileCommand) -> FileOutcome:
        """Carry out a command on every replica. Blocks. Raises ``CodedError``."""
        try:
            return self._link.change_file(command)
        except OSError:
            raise self._unavailable("the change may not have reached every gateway; try again") from None

    def _unavailable(self, message: str) -> CodedError:
        return CodedError(self._code, message, self._param, retry_after_ms=RETRY_AFTER_MS)


class ReplicatedVoiceStore(VoiceStore):
    """The voices of a cluster."""

    def __init__(self, folder: Path, link: ClusterLink, max_voices: int, max_voices_per_key: int) -> None:
        super().__init__(folder, max_voices, max_voices_per_key)
        self._copied = CopiedFiles(link, "voice", "voices_unavailable", "voice")

    def find(self, owner: str, name: str) -> StoredVoice | None:
        """As in ``VoiceStore``. Raises ``CodedError`` if another gateway may have changed the voice."""
        found = super().find(owner, name)
        self._copied.check_current(name)
        return found

    def add(self, voice: StoredVoice) -> None:
        """Raises ``CodedError`` with the code of the error."""
        self._copied.change(PutVoice(to_bytes(voice), self._max_voices, self._max_voices_per_key))

    def remove(self, owner: str, name: str) -> bool:
        return self._copied.change(RemoveVoice(owner, name)).existed


class ReplicatedLexiconStore(LexiconStore):
    """The lexicons of a cluster."""

    def __init__(self, folder: Path, link: ClusterLink) -> None:
        super().__init__(folder)
        self._copied = CopiedFiles(link, "lexicon", "lexicons_unavailable", "lexicons")

    def find(self, owner: str, name: str) -> StoredLexicon | None:
        """As in ``LexiconStore``. Raises ``CodedError`` if another gateway may have changed the lexicon."""
        found = super().find(owner, name)
        self._copied.check_current(name)
        return found

    def read(self, owner: str, name: str) -> LexiconRecord | None:
        """As ``find``."""
        found = super().read(owner, name)
        self._copied.check_current(name)
        return found

    def put(self, record: LexiconRecord) -> None:
        """Raises ``CodedError`` with the code of the error."""
        self._copied.change(PutLexicon(msgspec.json.encode(record)))

    def edit(self, owner: str, name: str, change: Callable[[LexiconRecord], LexiconRecord]) -> LexiconManifest | None:
        """As in ``LexiconStore``. ``change`` is called again if another gateway was first."""
        record = self.read(owner, name) if NAME.fullmatch(name) else None
        while record is not None:
            changed = change(record)
            outcome = self._copied.change(PutLexicon(msgspec.json.encode(changed), record.manifest.version))
            if outcome.existed:
                return changed.manifest
            record = None if outcome.current is None else parse_lexicon_record(outcome.current)
        return None

    def remove(self, owner: str, name: str) -> bool:
        return self._copied.change(RemoveLexicon(owner, name)).existed
