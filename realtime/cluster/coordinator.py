"""The coordinator of a cluster: it leases the limits of keys to gateways and holds the files that all of them have.

A replica calls ``sync`` again and again. An answer is a lease: until it has passed the replica may use the places, the
voices and the lexicons that it knows. A change of files is over when each replica has it, or its lease has passed.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct, msgpack

from engine.api import ErrorInfo, SpeechError
from realtime.cluster.limit_leases import FORGET_S, LEASE_S, Lease, LimitLeases, Usage
from realtime.cluster.stored_files import (
    FileChange,
    FileCommand,
    FileKey,
    FileOutcome,
    StoredFiles,
    carry_out,
)
from realtime.config import ENVIRONMENT_PREFIX, ConfigError
from realtime.watermark import load_or_draw_key
from sessions.owned_files import Version

log = logging.getLogger("voicewire.cluster")

# Environment variable with the key of the watermark.
WATERMARK_KEY = f"{ENVIRONMENT_PREFIX}WATERMARK_KEY"
# Longest time that an answer waits for a change.
SYNC_WAIT_S = 0.25
SCAN_INTERVAL_S = 1.0
# Of one answer. The last file may exceed the bytes.
MAX_CHANGES = 64
MAX_CHANGE_BYTES = 16 * 2**20
# Names of files that have gone, which are remembered for replicas that are behind.
MAX_GONE = 1_000


class SyncRequest(Struct, frozen=True, tag=True):
    replica: str
    # Version of the lease that is applied.
    applied: int = 0
    usage: dict[str, Usage] = {}
    # Of the coordinator that the files are from, and their version.
    epoch: str = ""
    files: int = 0


class SyncAnswer(Struct, frozen=True):
    lease: Lease
    epoch: str
    # Version of the files after ``changes``.
    files: int
    changes: list[FileChange] = []
    # Whether there are no more changes yet.
    is_complete: bool = True
    # All files that there are, for a replica that is too far behind to be given the names of those that have gone.
    present: list[FileKey] | None = None


class RemoveReplica(Struct, frozen=True, tag=True):
    """The replica has ended."""

    replica: str


class WatermarkKeyRequest(Struct, frozen=True, tag=True):
    """Asks for the key that all gateways mark speech with."""


class WatermarkKeyAnswer(Struct, frozen=True):
    """``error`` says why the head node has no key."""

    key: str = ""
    error: str = ""


Message = SyncRequest | FileCommand | RemoveReplica | WatermarkKeyRequest


class ReplicaFiles(Struct):
    """What a replica has acknowledged, and when it called last."""

    version: int = 0
    heard_s: float = 0.0


class Coordinator:
    """State of the leases, and of the files in ``folder``. All methods run on one event loop.

    The successor of a coordinator that has died grants nothing until the leases of that one have passed.
    """

    def __init__(self, folder: Path, is_successor: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock = folder, clock
        # From when replicas that have not called have no lease.
        self._alone_from_s = clock() + (LEASE_S if is_successor else 0.0)
        self._leases = LimitLeases(self._alone_from_s, time.time_ns())
        self._epoch = secrets.token_hex(8)
        self._stored = StoredFiles(folder)
        self._files: dict[FileKey, Version] = {}
        # Version of the last change of each file, in order; also of the last files that have gone.
        self._changes: dict[FileKey, int] = {}
        self._version = 0
        # Version of the newest name that was forgotten.
        self._forgotten_version = 0
        self._scanned_s = -SCAN_INTERVAL_S
        self._scanning = asyncio.Lock()
        # One change at a time: each scans the folder, and replicas that renew their leases wait for scans.
        self._changing = asyncio.Lock()
        self._replicas: dict[str, ReplicaFiles] = {}
        self._moved = asyncio.Condition()
        # Loaded when the first gateway asks: none does if the watermark is off.
        self._watermark_key = ""

    async def handle(self, message: bytes) -> bytes:
        """Answer an encoded request."""
        match msgpack.decode(message, type=Message):
            case SyncRequest() as request:
                return msgpack.encode(await self.sync(request))
            case RemoveReplica(replica):
                await self.remove_replica(replica)
                return b""
            case WatermarkKeyRequest():
                return msgpack.encode(self.watermark_key())
            case command:
                return msgpack.encode(await self.change_file(command))

    async def sync(self, request: SyncRequest) -> SyncAnswer:
        """Renew the lease of a replica; returns the changes since its version, at once if there are any."""
        begun_s = self._clock()
        is_known = request.epoch == self._epoch
        known = request.files if is_known else 0
        self._replicas[request.replica] = ReplicaFiles(known, begun_s)
        await self._notify()
        await self._scan(SCAN_INTERVAL_S)
        if known == self._version:
            await self._wait(lambda: known != self._version, SYNC_WAIT_S)
        lease = self._leases.renew(request.replica, request.applied, request.usage, self._clock())
        present = None if is_known and known >= self._forgotten_version else list(self._files)
        changed, last = self._changes_since(known), self._version
        changes = await asyncio.to_thread(self._read, [key for key, _ in changed[:MAX_CHANGES]])
        version = changed[len(changes) - 1][1] if changes else last
        return SyncAnswer(lease, self._epoch, version, changes, version == self._version, present)

    def _changes_since(self, version: int) -> list[tuple[FileKey, int]]:
        newest_first = itertools.takewhile(lambda change: change[1] > version, reversed(self._changes.items()))
        return list(newest_first)[::-1]

    async def change_file(self, command: FileCommand) -> FileOutcome:
        """Carry out a command, and wait until every replica has it or knows that it is behind."""
        try:
            async with self._changing:
                outcome = await asyncio.to_thread(carry_out, command, self._folder)
                await self._scan(0)
                version = self._version
        except SpeechError as error:
            return FileOutcome(error=error.info)
        except OSError as error:
            log.warning("a file of the cluster could not be stored", extra={"error": type(error).__name__})
            return FileOutcome(error=ErrorInfo("internal_error", "the file could not be stored"))
        while not self._has_spread(version):
            await self._wait(lambda: self._has_spread(version), SYNC_WAIT_S)
        return outcome

    def watermark_key(self) -> WatermarkKeyAnswer:
        """Return the key of the head node: of its environment, or the stored one."""
        try:
            self._watermark_key = self._watermark_key or load_or_draw_key(os.environ.get(WATERMARK_KEY)).decode()
        except ConfigError as error:
            return WatermarkKeyAnswer(error=str(error))
        return WatermarkKeyAnswer(self._watermark_key)

    async def remove_replica(self, replica: str) -> None:
        """Drop the leases of a replica that has ended."""
        self._leases.remove(replica)
        self._replicas.pop(replica, None)
        await self._notify()

    def _has_spread(self, version: int) -> bool:
        now_s = self._clock()
        if now_s < self._alone_from_s:
            return False
        for name in [name for name, one in self._replicas.items() if now_s - one.heard_s > FORGET_S]:
            del self._replicas[name]
        return all(one.version >= version or now_s - one.heard_s > LEASE_S for one in self._replicas.values())

    async def _scan(self, max_age_s: float) -> None:
        """Compare the folder with what is known of it: an operator may change it, too."""
        async with self._scanning:
            if self._clock() - self._scanned_s < max_age_s:
                return
            self._scanned_s = self._clock()
            files = await asyncio.to_thread(self._stored.versions)
            changed = [key for key in {**self._files, **files} if self._files.get(key) != files.get(key)]
            self._files = files
            for key in changed:
                self._version += 1
                self._changes.pop(key, None)  # goes to the end
                self._changes[key] = self._version
            gone = [key for key in self._changes if key not in files]
            for key in gone[: max(len(gone) - MAX_GONE, 0)]:
                self._forgotten_version = self._changes.pop(key)
        if changed:
            await self._notify()

    def _read(self, keys: list[FileKey]) -> list[FileChange]:
        """Read as many of these files as an answer may have, at least one."""
        changes: list[FileChange] = []
        num_bytes = 0
        for key in keys:
            changes.append(self._stored.read(key))
            num_bytes += len(changes[-1].data or b"")
            if num_bytes > MAX_CHANGE_BYTES:
                break
        return changes

    async def _notify(self) -> None:
        async with self._moved:
            self._moved.notify_all()

    async def _wait(self, condition: Callable[[], bool], timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s), self._moved:
                await self._moved.wait_for(condition)
        except TimeoutError:
            return
