"""The usage log: a JSON line for each reply that ended, for billing. It holds no text.

A thread writes the lines, so that a slow or full disk holds up no speech. A line is with the operating system before
the terminal event of its reply leaves, unless that takes longer than ``MAX_USAGE_WAIT_S``.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import queue
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

import msgspec

from realtime.config import ConfigError
from sessions.metrics import Metrics
from sessions.usage import UsageRecord

log = logging.getLogger("voicewire.usage")

# Seconds between attempts after a failure.
RETRY_INTERVAL_S = 1.0
# Lines that wait for a disk that fails; beyond them the oldest are lost.
MAX_PENDING_LINES = 10_000
CLOSE_TIMEOUT_S = 2.0
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)

Entry = tuple[bytes, asyncio.AbstractEventLoop, "asyncio.Future[None]"]


class UsageLog:
    """Appends to a file that several processes may share and that may be renamed. Call ``close``."""

    def __init__(self, path: Path, metrics: Metrics) -> None:
        """Raises ``ConfigError`` if the file cannot be opened for another reason than a full disk."""
        self._path = path
        self._metrics = metrics
        self._entries: queue.SimpleQueue[Entry | None] = queue.SimpleQueue()
        self._pending: deque[bytes] = deque()
        # A failed write, or a crash of the machine, may have left a part of a line.
        self._is_torn = False
        self._has_failed = False
        try:
            os.close(self._open())
            self._is_torn = has_torn_end(path)
        except OSError as error:
            if error.errno not in FULL_DISK:
                raise ConfigError(f"log.usage_file = {str(path)!r}: {error.strerror}") from None
        self._thread = threading.Thread(target=self._run, name="voicewire usage log", daemon=True)
        self._thread.start()

    def record(self, record: UsageRecord) -> asyncio.Future[None]:
        """Append a line. The future is done when it is written, or when that has failed."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = msgspec.json.encode({"time": now} | msgspec.structs.asdict(record)) + b"\n"
        self._entries.put((line, loop, done))
        return done

    def close(self) -> None:
        """Write what waits. A disk that does not answer is not waited for."""
        self._entries.put(None)
        self._thread.join(CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        while True:
            entries = self._next_entries()
            self._pending.extend(entry[0] for entry in entries if entry is not None)
            descriptor = self._write()
            for entry in filter(None, entries):
                _, loop, done = entry
                with suppress(RuntimeError):  # the event loop has ended
                    loop.call_soon_threadsafe(_finish, done)
            if descriptor is not None:
                with suppress(OSError):
                    os.fdatasync(descriptor)
                os.close(descriptor)
            if None in entries:
                return

    def _next_entries(self) -> list[Entry | None]:
        """Return all entries that wait; with failed lines none after a while."""
        entries: list[Entry | None] = []
        with suppress(queue.Empty):
            entries.append(self._entries.get(timeout=RETRY_INTERVAL_S if self._pending else None))
            while True:
                entries.append(self._entries.get_nowait())
        return entries

    def _write(self) -> int | None:
        """Write all lines; returns the open file."""
        descriptor = None
        try:
            descriptor = self._open()
            while self._pending:
                line = (b"\n" if self._is_torn else b"") + self._pending[0]
                self._is_torn = os.write(descriptor, line) < len(line)
                if self._is_torn:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._pending.popleft()
            self._has_failed = False
        except OSError as error:
            self._on_failure(error)
        return descriptor

    def _on_failure(self, error: OSError) -> None:
        self._metrics.inc("usage_log_failures_total")
        if not self._has_failed:
            log.error("usage log cannot be written", extra={"error": errno.errorcode.get(error.errno or 0, "OSError")})
        self._has_failed = True
        num_lost = max(len(self._pending) - MAX_PENDING_LINES, 0)
        for _ in range(num_lost):
            self._pending.popleft()
        if num_lost:
            self._metrics.inc("usage_lines_lost_total", num_lost)

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def has_torn_end(path: Path) -> bool:
    """Return whether a regular file ends within a line. Raises ``OSError``."""
    if not path.is_file() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def _finish(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
