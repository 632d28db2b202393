"""Process-wide care: garbage collection, heap pages, descriptors, a temporary folder, cores, children. No torch."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fcntl import F_DUPFD_CLOEXEC, LOCK_EX, LOCK_NB, fcntl, flock
from functools import cache
from pathlib import Path

PREFIX = "voicewire-run-"
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")


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
    """Lock a folder. Raises ``OSError`` if it belongs to another user or is not a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_uid != os.getuid():
            raise PermissionError(path)
        flock(descriptor, LOCK_EX | LOCK_NB)
        yield
    finally:
        os.close(descriptor)


# A full collection with a thousand rows stops the engine for a tenth of a second. Nothing in a step makes cycles, so
# full collections wait for a pause.
NEVER = 1 << 30


def freeze_gc(full_after: int = NEVER) -> None:
    """Freeze present objects. A full collection of later ones follows ``full_after`` collections of younger ones, or
    more after an earlier call with more."""
    gc.collect()
    gc.freeze()
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, max(old, full_after))


def is_gc_frozen() -> bool:
    return gc.get_threshold()[2] == NEVER


def collect_young() -> None:
    """In a pause: all that came since."""
    if is_gc_frozen():
        gc.collect()


def unfreeze_gc() -> None:
    """Before an engine is made where one has died: what was there in its days is let go, too."""
    if is_gc_frozen() or gc.get_freeze_count():
        gc.unfreeze()
        gc.collect()


@cache
def _trim() -> ctypes._NamedFuncPointer | None:
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


def trim_heap() -> None:
    """Return free heap pages to the system, which the C library keeps; no effect where it has no such call."""
    trim = _trim()
    if trim is not None:
        trim(0)


# For files, engines, calls, and whatever else a server opens.
OTHER_DESCRIPTORS = 256


def reserve_descriptors(num_connections: int) -> None:
    """Enlarge the table of descriptors for as many connections, within the limit of open files.

    Else Linux enlarges it each time it is full. Where the process has threads, the caller stops for 20 to 60 ms then,
    on a host with 64 cores. Measured in docs/experiments/gpu-capacity.md: "Stalls while the table of descriptors
    grows".
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = num_connections + OTHER_DESCRIPTORS
    last = (count if limit == resource.RLIM_INFINITY else min(count, limit)) - 1
    with suppress(OSError), Path(os.devnull).open() as file:  # the last one may be in use
        os.close(fcntl(file, F_DUPFD_CLOEXEC, last))


def child_environment() -> dict[str, str]:
    """Return variables with which a child imports these packages first, installed or in a source tree."""
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def available_cores() -> int:
    """Return the cores that this process may use, by its affinity and the quota of its container."""
    num_cores = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):  # no control groups, or no quota: ``max``
        quota_us, period_us = map(int, CPU_QUOTA.read_text().split())
        num_cores = min(num_cores, max(quota_us // period_us, 1))
    return num_cores
