"""A folder in the temporary one, for one process and as long as that lives. No torch."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path

PREFIX = "voicewire-run-"


class RunDirectory:
    """Its maker holds a lock on it, which the system takes away however that ends: a folder without a lock was left
    by a process that was killed, and goes when the next is made."""

    def __init__(self) -> None:
        self.path = Path(tempfile.gettempdir()) / f"{PREFIX}{secrets.token_hex(4)}"
        self._lock: int | None = None

    def make(self) -> None:
        """For its user alone; one that is there stays. Raises ``OSError``."""
        if self._lock is not None and self.path.is_dir():
            return
        self.remove()
        remove_stale_run_dirs()
        unknown = self.path.with_name(f".{self.path.name}")  # none of those looked for, until it is held
        unknown.mkdir(mode=0o700)
        self._lock = os.open(unknown, os.O_RDONLY)
        with suppress(OSError):  # some file systems have no locks for folders: then none is removed, either
            flock(self._lock, LOCK_EX)
        unknown.rename(self.path)

    def remove(self) -> None:
        """With all that is in it."""
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = None


def remove_stale_run_dirs() -> None:
    """Folders of this user whose makers are gone."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError), _is_locked(path):
            shutil.rmtree(path)


@contextmanager
def _is_locked(path: Path) -> Iterator[None]:
    """Raises ``OSError`` when it belongs to another user or is no folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_uid != os.getuid():
            raise PermissionError(path)
        flock(descriptor, LOCK_EX | LOCK_NB)
        yield
    finally:
        os.close(descriptor)
