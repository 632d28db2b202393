"""The link between the gateway of a cluster and its replica, which talks to the coordinator: a Unix socket.

The gateway asks for its lease a few times a second, and sends changes of files. It needs neither Ray nor a network.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

from msgspec import DecodeError, Struct, msgpack

from engine.api import CodedError
from realtime.cluster.coordinator import RemoveReplica, SyncAnswer, SyncRequest
from realtime.cluster.leased_counters import LeasedUsageCounters
from realtime.cluster.limit_leases import LEASE_S, Lease, Usage
from realtime.cluster.stored_files import FileChange, FileCommand, FileOutcome, StoredFiles

log = logging.getLogger("voicewire.cluster")

# Environment variable with the socket's path.
LINK_VARIABLE = "VOICEWIRE_CLUSTER_LINK"
# Folder of the copies, beside the socket.
VOICES = "voices"
EXCHANGE_INTERVAL_S = 0.2
EXCHANGE_TIMEOUT_S = 2.0
RETRY_S = 0.5
SYNC_TIMEOUT_S = 3.0
# A change waits for a coordinator that restarts, and then for the leases of replicas that it cannot reach.
CHANGE_TIMEOUT_S = 2 * LEASE_S + 5.0

# Sends an encoded request to the coordinator and returns the answer. Raises ``OSError`` after that many seconds.
Call = Callable[[bytes, float], bytes]


class Exchange(Struct, frozen=True, tag=True):
    """What a gateway process tells its replica."""

    process: int
    applied: int
    usage: dict[str, Usage]


class Validity(Struct, frozen=True):
    """The lease of a replica. Moments are those of ``time.monotonic``, which all processes of a machine share."""

    lease: Lease = Lease()
    limits_until_s: float = 0.0
    files_until_s: float = 0.0


class ReplicaLink:
    """The replica's side: keeps the lease and a copy of the files up to date, and answers the gateway's processes."""

    def __init__(self, name: str, folder: Path, call: Call) -> None:
        self._name, self._call = name, call
        self.address = folder / "link"
        self.voices_folder = folder / VOICES
        self._files = StoredFiles(self.voices_folder)
        self._validity = Validity()
        self._epoch, self._version = "", 0
        self._lock = threading.Lock()
        # Last exchange of each process, and when it was.
        self._exchanges: dict[int, tuple[float, Exchange]] = {}
        self._wanted: set[str] = set()
        self._closed = threading.Event()
        self._listener = Listener(str(self.address), "AF_UNIX", backlog=64)
        for work in (self._listen, self._sync_again):
            threading.Thread(target=work, name="voicewire cluster link", daemon=True).start()

    def close(self) -> None:
        """Stop, and tell the coordinator."""
        if self._closed.is_set():
            return
        self._closed.set()
        with suppress(OSError):
            self._call(msgpack.encode(RemoveReplica(self._name)), SYNC_TIMEOUT_S)
        with suppress(OSError):
            Client(str(self.address), "AF_UNIX").close()  # ends the wait for a connection
        self._listener.close()

    def _listen(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except OSError:
                return None
            if self._closed.is_set():
                return connection.close()
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: Connection) -> None:
        with connection, suppress(OSError, EOFError, DecodeError):
            message = connection.recv_bytes()
            match msgpack.decode(message, type=Exchange | FileCommand):
                case Exchange() as exchange:
                    connection.send_bytes(msgpack.encode(self._exchange(exchange)))
                case _:
                    connection.send_bytes(self._call(message, CHANGE_TIMEOUT_S))

    def _exchange(self, exchange: Exchange) -> Validity:
        with self._lock:
            self._exchanges[exchange.process] = (time.monotonic(), exchange)
            self._wanted |= {name for name, usage in exchange.usage.items() if usage.is_wanted}
            return self._validity

    def _sync_again(self) -> None:
        while not self._closed.is_set():
            try:
                self._sync()
            except OSError as error:
                if self._closed.is_set():  # the call was cut as all of the replica ended
                    return
                log.warning("the coordinator does not answer", extra={"error": type(error).__name__})
                self._closed.wait(RETRY_S)
            except Exception:  # this thread is all that renews the leases of the gateway
                log.exception("a lease of the cluster could not be renewed")
                self._closed.wait(RETRY_S)

    def _sync(self) -> None:
        sent_s = time.monotonic()
        answer = msgpack.decode(self._call(msgpack.encode(self._request()), SYNC_TIMEOUT_S), type=SyncAnswer)
        gone = set() if answer.present is None else set(self._files.versions()).difference(answer.present)
        for change in [*(FileChange(key, None) for key in gone), *answer.changes]:
            self._files.apply(change)
        self._epoch, self._version = answer.epoch, answer.files
        until_s = sent_s + LEASE_S
        with self._lock:
            files_until_s = until_s if answer.is_complete else self._validity.files_until_s
            self._validity = Validity(answer.lease, until_s, files_until_s)

    def _request(self) -> SyncRequest:
        now_s = time.monotonic()
        with self._lock:
            self._exchanges = {process: one for process, one in self._exchanges.items() if now_s - one[0] <= LEASE_S}
            exchanges = [exchange for _, exchange in self._exchanges.values()]
            wanted, self._wanted = self._wanted, set()
        usage = {
            name: Usage(one.limit, one.used, one.places, name in wanted)
            for exchange in exchanges
            for name, one in exchange.usage.items()
        }
        applied = min((exchange.applied for exchange in exchanges), default=0)
        return SyncRequest(self._name, applied, usage, self._epoch, self._version)


class ClusterLink:
    """The gateway's side."""

    def __init__(self, address: Path) -> None:
        self._address = address
        self._files_until_s = 0.0
        # Changes of files can hold all threads of the event loop for seconds.
        self._renewals = ThreadPoolExecutor(1, "voicewire cluster link")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> ClusterLink | None:
        path = environment.get(LINK_VARIABLE)
        return cls(Path(path)) if path else None

    @property
    def has_current_files(self) -> bool:
        return time.monotonic() < self._files_until_s

    @asynccontextmanager
    async def open(self, counters: LeasedUsageCounters) -> AsyncIterator[None]:
        """Renew the leases while the context is open."""
        renewal = asyncio.create_task(self._renew_again(counters), name="voicewire cluster link")
        try:
            yield
        finally:
            renewal.cancel()
            await asyncio.wait([renewal])
            self._renewals.shutdown(wait=False)

    async def _renew_again(self, counters: LeasedUsageCounters) -> None:
        was_current = True
        while True:
            exchange = Exchange(os.getpid(), counters.version, counters.usage())
            with suppress(OSError, EOFError, DecodeError):
                loop = asyncio.get_running_loop()
                answer = await loop.run_in_executor(self._renewals, self._send, exchange, EXCHANGE_TIMEOUT_S)
                validity = msgpack.decode(answer, type=Validity)
                counters.renew(validity.lease, validity.limits_until_s)
                self._files_until_s = validity.files_until_s
            if was_current != counters.is_current:
                was_current = counters.is_current
                log.warning("leases of the cluster are current" if was_current else "leases of the cluster have passed")
            await asyncio.sleep(EXCHANGE_INTERVAL_S)

    def change_file(self, command: FileCommand) -> FileOutcome:
        """Change a file on all replicas. Blocks. Raises ``CodedError``, or ``OSError`` if some may not have it."""
        try:
            outcome = msgpack.decode(self._send(command, CHANGE_TIMEOUT_S), type=FileOutcome)
        except (EOFError, DecodeError) as error:
            raise OSError(f"no outcome: {type(error).__name__}") from None
        if (refusal := outcome.error) is not None:
            raise CodedError(refusal.code, refusal.message, refusal.param, refusal.retry_after_ms)
        return outcome

    def _send(self, message: Exchange | FileCommand, timeout_s: float) -> bytes:
        with Client(str(self._address), "AF_UNIX") as connection:
            connection.send_bytes(msgpack.encode(message))
            if not connection.poll(timeout_s):
                raise TimeoutError(f"no answer within {timeout_s:g} s")
            return connection.recv_bytes()
