"""Voices on disk: FOLDER/OWNER/NAME.safetensors. Any number of processes may share the folder.

A file appears whole, by a rename, or not at all; it never changes; it goes by being unlinked. So readers need no lock.
Writers take turns by a lock on FOLDER/.lock, which the system lifts when its holder dies: whatever temporary file the
next one finds was left by a dead one.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import IO
from urllib.parse import quote

from engine.api import InvalidRequest
from sessions.errors import LimitExceeded
from sessions.voices.voice import NAME, StoredVoice, VoiceManifest
from sessions.voices.voice_file import CorruptVoiceFile, read_manifest, read_voice, to_bytes

log = logging.getLogger("voicewire.voices")

SUFFIX = ".safetensors"
TEMP_SUFFIX = ".being-written"
LOCK = ".lock"
PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600
MAX_CACHED_VOICES = 256
MAX_WAIT_S = 10.0
LOCK_RETRY_S = 0.005

# Tells one file from another that took its name: inode, size, time of change.
Version = tuple[int, int, int]


class VoiceExists(InvalidRequest):
    code = "voice_exists"


class VoiceStore:
    """Store voices as files.

    Methods other than ``find`` may take milliseconds: call them in a worker thread. Methods may run concurrently.
    """

    def __init__(self, folder: Path, max_voices: int = 10_000, max_voices_per_key: int = 1_000) -> None:
        self._folder, self._max_voices, self._max_voices_per_key = folder, max_voices, max_voices_per_key
        self._manifests: dict[str, tuple[Version, VoiceManifest]] = {}
        self._voices: dict[Path, tuple[Version, StoredVoice]] = {}

    def find(self, owner: str, name: str) -> StoredVoice | None:
        """Find a voice with one look at the disk; the file is read only when it has changed."""
        path = self._path(owner, name)
        if not NAME.fullmatch(name) or (version := _version(path)) is None:
            return None
        known = self._voices.get(path)
        if known is None or known[0] != version:
            known = self._read(path, version)
        return None if known is None else known[1]

    def list(self, owner: str) -> list[VoiceManifest]:
        """List voices by name; files that cannot be read are left out."""
        if len(self._manifests) > self._max_voices:  # many have gone since
            self._manifests.clear()
        manifests = filter(None, map(self._manifest, _voice_files(self._folder_of(owner))))
        return sorted(manifests, key=attrgetter("name"))

    def add(self, voice: StoredVoice) -> None:
        """Store a voice durably: once it returns, the voice survives a crash of the machine.

        Raises ``VoiceExists``, ``LimitExceeded`` or ``OSError``, of which ``TimeoutError`` is one; then nothing has
        changed.
        """
        manifest = voice.manifest
        path = self._path(manifest.owner, manifest.name)
        data = to_bytes(voice)
        with self._writing():
            if path.exists():
                raise VoiceExists(f"voice {manifest.name!r} exists already; delete it first", "name")
            self._check_capacity(manifest.owner)
            path.parent.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
            self._write(path, data)

    def remove(self, owner: str, name: str) -> bool:
        """Delete a voice and return whether it existed. Responses that use it continue."""
        path = self._path(owner, name)
        if not NAME.fullmatch(name) or _version(path) is None:
            return False
        with self._writing():
            try:
                path.unlink()
            except FileNotFoundError:
                return False
            _sync_folder(path.parent)
        self._voices.pop(path, None)
        self._manifests.pop(str(path), None)
        return True

    def _path(self, owner: str, name: str) -> Path:
        return self._folder_of(owner) / f"{name}{SUFFIX}"

    def _folder_of(self, owner: str) -> Path:
        return self._folder / (f"key-{quote(owner, safe='')}" if owner else "shared")

    def _check_capacity(self, owner: str) -> None:
        if (num_own := len(_voice_files(self._folder_of(owner)))) >= self._max_voices_per_key:
            limit = self._max_voices_per_key
            raise LimitExceeded(f"there are {num_own} voices of this key, max_voices_per_key is {limit}", "name")
        num_all = sum(len(_voice_files(folder)) for folder in self._folder.iterdir() if folder.is_dir())
        if num_all >= self._max_voices:
            raise LimitExceeded(f"there are {num_all} voices, max_voices is {self._max_voices}", "name")

    def _write(self, path: Path, data: bytes) -> None:
        half = path.with_name(path.name + TEMP_SUFFIX)
        try:
            with open(half, "wb", opener=_open_private) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            half.rename(path)
        except OSError:
            half.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        self._folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        with open(self._folder / LOCK, "wb", opener=_open_private) as lock:
            _lock(lock)
            for half in self._folder.glob(f"*/*{TEMP_SUFFIX}"):
                half.unlink(missing_ok=True)
            yield

    def _manifest(self, file: os.DirEntry[str]) -> VoiceManifest | None:
        try:
            version = _version_of(file.stat())
            known = self._manifests.get(file.path)
            if known is None or known[0] != version:
                known = self._manifests[file.path] = (version, read_manifest(file.path))
        except (CorruptVoiceFile, OSError) as error:
            _warn(file.name, error)
            return None
        return known[1]

    def _read(self, path: Path, version: Version) -> tuple[Version, StoredVoice] | None:
        try:
            known = (version, read_voice(path))
        except (CorruptVoiceFile, OSError) as error:
            _warn(path.name, error)
            return None
        if len(self._voices) >= MAX_CACHED_VOICES:
            self._voices.pop(list(self._voices)[0], None)  # noqa: RUF015 other threads change it meanwhile
        self._voices[path] = known
        return known


def _voice_files(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as files:
            return [file for file in files if file.name.endswith(SUFFIX)]
    except FileNotFoundError:
        return []
    except OSError as error:  # speech goes on without
        _warn(folder.name, error)
        return []


def _version(path: Path) -> Version | None:
    try:
        return _version_of(path.stat())
    except OSError:
        return None


def _version_of(status: os.stat_result) -> Version:
    return status.st_ino, status.st_size, status.st_mtime_ns


def _lock(file: IO[bytes]) -> None:
    """Lock the file; raises ``TimeoutError`` when another process holds the lock too long."""
    give_up_s = time.monotonic() + MAX_WAIT_S
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > give_up_s:
                raise TimeoutError(f"another process has been writing for {MAX_WAIT_S:g} s") from None
            time.sleep(LOCK_RETRY_S)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, PRIVATE_FILE)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _warn(file: str, error: Exception) -> None:
    log.warning("unreadable voice file", extra={"file": file, "code": type(error).__name__})
