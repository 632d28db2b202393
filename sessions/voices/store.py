"""Voices on disk, as ``OwnedFiles``."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path

from engine.api import InvalidRequest
from sessions.errors import LimitExceeded
from sessions.owned_files import FileCache, OwnedFiles, Version
from sessions.voices.voice import NAME, StoredVoice, VoiceManifest
from sessions.voices.voice_file import CorruptVoiceFile, read_manifest, read_voice, to_bytes

SUFFIX = ".safetensors"
MAX_CACHED_VOICES = 256


class VoiceExists(InvalidRequest):
    code = "voice_exists"


class VoiceStore:
    """Store voices as files.

    Methods other than ``find`` may take milliseconds: call them in a worker thread. Methods may run concurrently.
    """

    def __init__(self, folder: Path, max_voices: int = 10_000, max_voices_per_key: int = 1_000) -> None:
        self._files = OwnedFiles(folder, SUFFIX)
        self._max_voices, self._max_voices_per_key = max_voices, max_voices_per_key
        self._manifests = FileCache(read_manifest, (CorruptVoiceFile,), max_voices)
        self._voices = FileCache(read_voice, (CorruptVoiceFile,), MAX_CACHED_VOICES)

    def find(self, owner: str, name: str) -> StoredVoice | None:
        """Find a voice with one look at the disk; the file is read only when it has changed."""
        return self._voices.get(self._files.path(owner, name)) if NAME.fullmatch(name) else None

    def list(self, owner: str) -> list[VoiceManifest]:
        """List voices by name; files that cannot be read are left out."""
        files = self._files.list(self._files.folder_of(owner))
        manifests = filter(None, (self._manifests.get(Path(file)) for file in files))
        return sorted(manifests, key=attrgetter("name"))

    def versions(self) -> dict[tuple[str, str], Version]:
        """Return the version of each voice by owner and name."""
        return self._files.versions()

    def read_file(self, owner: str, name: str) -> bytes | None:
        """Return the content of a voice's file."""
        try:
            return self._files.path(owner, name).read_bytes()
        except OSError:
            return None

    def add(self, voice: StoredVoice) -> None:
        """Store a voice durably: once it returns, the voice survives a crash of the machine.

        Raises ``VoiceExists``, ``LimitExceeded`` or ``OSError``, of which ``TimeoutError`` is one; then nothing has
        changed.
        """
        manifest = voice.manifest
        path = self._files.path(manifest.owner, manifest.name)
        data = to_bytes(voice)
        with self._files.writing():
            if path.exists():
                raise VoiceExists(f"voice {manifest.name!r} exists already; delete it first", "name")
            self._check_capacity(manifest.owner)
            self._files.write(path, data)

    def remove(self, owner: str, name: str) -> bool:
        """Delete a voice and return whether it existed. Responses that use it continue."""
        path = self._files.path(owner, name)
        if not NAME.fullmatch(name) or not self._files.remove(path):
            return False
        self._voices.remove(path)
        self._manifests.remove(path)
        return True

    def _check_capacity(self, owner: str) -> None:
        if (num_own := len(self._files.list(self._files.folder_of(owner)))) >= self._max_voices_per_key:
            limit = self._max_voices_per_key
            raise LimitExceeded(f"there are {num_own} voices of this key, max_voices_per_key is {limit}", "name")
        num_all = self._files.count_all()
        if num_all >= self._max_voices:
            raise LimitExceeded(f"there are {num_all} voices, max_voices is {self._max_voices}", "name")
