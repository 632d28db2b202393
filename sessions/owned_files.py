"""Files of keys on disk: FOLDER/OWNER/NAME.SUFFIX. Any number of processes may share the folder.

A file appears whole, by a rename, or not at all; it never changes; it goes by being unlinked or replaced. So readers
need no lock. Writers take turns by a lock on FOLDER/.lock, which the system lifts when its holder dies: whatever
temporary file the next one finds was left by a dead one.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Generic, TypeVar
from urllib.parse import quote, unquote

log = logging.getLogger("voicewire.voices")

TEMP_SUFFIX = ".being-written"
LOCK = ".lock"
OWNER_PREFIX, SHARED_FOLDER = "key-", "shared"
PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600
MAX_WAIT_S = 10.0
LOCK_RETRY_S = 0.005

# Tells one file from another that took its name: inode, size, time of change.
Version = tuple[int, int, int]
T = TypeVar("T")


class OwnedFiles:
    """The files of one kind in a folder."""

    def __init__(self, folder: Path, suffix: str) -> None:
        self.folder = folder
        self._suffix = suffix

    def path(self, owner: str, name: str) -> Path:
        return self.folder_of(owner) / f"{name}{self._suffix}"

    def folder_of(self, owner: str) -> Path:
        return self.folder / (f"{OWNER_PREFIX}{quote(owner, safe='')}" if owner else SHARED_FOLDER)

    def list(self, folder: Path) -> list[os.DirEntry[str]]:
        """List the files of an owner's folder."""
        try:
            with os.scandir(folder) as files:
                return [file for file in files if file.name.endswith(self._suffix)]
        except FileNotFoundError:
            return []
        except OSError as error:  # speech goes on without
            warn_unreadable(folder.name, error)
            return []

    def versions(self) -> dict[tuple[str, str], Version]:
        """Return the version of each file by owner and name."""
        try:
            folders = [folder for folder in self.folder.iterdir() if folder.is_dir()]
        except OSError:
            return {}
        files = [(_owner_of(folder), file) for folder in folders for file in self.list(folder)]
        versions = {(owner, file.name.removesuffix(self._suffix)): version_of(Path(file)) for owner, file in files}
        return {key: version for key, version in versions.items() if version is not None}

    def count_all(self) -> int:
        return sum(len(self.list(folder)) for folder in self.folder.iterdir() if folder.is_dir())

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the lock of writers. Raises ``OSError``, of which ``TimeoutError`` is one."""
        self.folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        with open(self.folder / LOCK, "wb", opener=_open_private) as lock:
            _lock(lock)
            for half in self.folder.glob(f"*/*{TEMP_SUFFIX}"):
                half.unlink(missing_ok=True)
            yield

    def write(self, path: Path, data: bytes) -> None:
        """Write a file durably, within ``writing``. Raises ``OSError``; then nothing has changed."""
        path.parent.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
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

    def remove(self, path: Path) -> bool:
        """Delete a file, and return whether it existed."""
        if version_of(path) is None:
            return False
        with self.writing():
            try:
                path.unlink()
            except FileNotFoundError:
                return False
            _sync_folder(path.parent)
        return True


class FileCache(Generic[T]):
    """The content of files, read again only when a file has changed. Any thread may use it."""

    def __init__(self, read: Callable[[Path], T], errors: tuple[type[Exception], ...], max_files: int) -> None:
        """``errors`` are those of a file that ``read`` cannot read, beside ``OSError``."""
        self._read = read
        self._errors: tuple[type[Exception], ...] = (*errors, OSError)
        self._max_files = max_files
        self._contents: dict[Path, tuple[Version, T]] = {}

    def get(self, path: Path) -> T | None:
        """Return the content with one look at the disk; ``None`` if there is none or it cannot be read."""
        if (version := version_of(path)) is None:
            return None
        known = self._contents.get(path)
        if known is not None and known[0] == version:
            return known[1]
        try:
            content = self._read(path)
        except self._errors as error:
            warn_unreadable(path.name, error)
            return None
        if len(self._contents) >= self._max_files:
            self._contents.pop(list(self._contents)[0], None)  # noqa: RUF015 other threads change it meanwhile
        self._contents[path] = (version, content)
        return content

    def remove(self, path: Path) -> None:
        self._contents.pop(path, None)


def _owner_of(folder: Path) -> str:
    """Return the owner of a folder; shared files have none."""
    return unquote(folder.name.removeprefix(OWNER_PREFIX)) if folder.name.startswith(OWNER_PREFIX) else ""


def version_of(path: Path) -> Version | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def warn_unreadable(file: str, error: Exception) -> None:
    log.warning("unreadable stored file", extra={"file": file, "code": type(error).__name__})


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


def data_folder() -> Path:
    """Return this program's folder in the user's data folder, whether it exists or not."""
    data_home = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")  # noqa: PTH111 never raises
    return Path(data_home) / "voicewire"


def voices_folder(setting: str | None) -> Path:
    return data_folder() / "voices" if setting is None else Path(setting)
