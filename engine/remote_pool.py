"""A pool of engines that others start: their addresses are settings, or lines of a file that may change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

from engine.address import EngineAddress, TlsFiles
from engine.api import InvalidRequest
from engine.client import EngineClient
from engine.endpoint import EngineSocket
from engine.pool import EnginePool

log = logging.getLogger(__name__)

POLL_INTERVAL_S = 0.5
FILE_PREFIX = "file:"
MAX_FILE_BYTES = 2**20


class AddressSource:
    """``unix:/path`` and ``tcp://host:port`` with commas between them, or ``file:/path`` with one a line.

    Empty lines and lines that begin with ``#`` are skipped. Raises ``InvalidRequest``.
    """

    def __init__(self, text: str, tls: TlsFiles | None = None) -> None:
        self._tls = tls
        self._file = Path(text.removeprefix(FILE_PREFIX)) if text.startswith(FILE_PREFIX) else None
        self._listed: list[EngineAddress] = []
        if self._file is None:
            self._listed = [self._parse(part.strip()) for part in text.split(",")]
        # Of the content that was read last, or why it could not be.
        self._seen: object = None

    def read(self) -> list[EngineAddress] | None:
        """Return the addresses, ``None`` if they have not changed. An unreadable file changes nothing."""
        if self._file is None:
            found, self._seen = (self._listed if self._seen is None else None), True
            return found
        try:
            status = self._file.stat()
            version = status.st_mtime_ns, status.st_size, status.st_ino
            if version == self._seen:
                return None
            if status.st_size > MAX_FILE_BYTES:
                raise OSError(f"the file has {status.st_size} bytes; the limit is {MAX_FILE_BYTES}")
            lines = self._file.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            if str(error) != self._seen:
                log.warning("the addresses of engines stay as they are: %s", error)
            self._seen = str(error)
            return None
        self._seen = version
        return list(self._parse_lines(lines))

    def _parse_lines(self, lines: list[str]) -> Iterator[EngineAddress]:
        for number, line in enumerate(map(str.strip, lines), 1):
            if line and not line.startswith("#"):
                try:
                    yield self._parse(line)
                except InvalidRequest as error:
                    log.error("line %d of %s is skipped: %s", number, self._file, error)

    def _parse(self, text: str) -> EngineAddress:
        address = EngineAddress.parse(text)
        address.check_protected(self._tls)
        return address


class RemotePool(EnginePool):
    """An ``EnginePool`` whose members come and go. It starts as soon as there is one."""

    def __init__(self, source: AddressSource, tls: TlsFiles | None = None) -> None:
        super().__init__([])
        self._source, self._tls = source, tls
        self._members: dict[EngineAddress, EngineClient] = {}
        self._has_engine = asyncio.Event()
        self._watcher: asyncio.Task[None] | None = None
        self._num_past_restarts = 0

    @property
    def num_restarts(self) -> int:
        return self._num_past_restarts + super().num_restarts

    async def start(self) -> None:
        """Wait for the first engine; the others are used as soon as they are there."""
        self._watcher = asyncio.create_task(self._watch(), name="engine addresses")
        try:
            await self._has_engine.wait()
        except BaseException:
            await self.aclose()
            raise

    def _on_change(self, client: EngineClient) -> None:
        super()._on_change(client)
        if self.is_alive:
            self._has_engine.set()

    async def _watch(self) -> None:
        while True:
            try:
                addresses = await asyncio.to_thread(self._source.read)
                if addresses is not None:
                    self._set_members(addresses)
                await self._close_leavers()
            except Exception:
                log.exception("updating the engines failed")
            await asyncio.sleep(POLL_INTERVAL_S)

    def _set_members(self, addresses: list[EngineAddress]) -> None:
        for address in addresses:
            if address not in self._members:
                log.info("an engine joins: %s", address)
                client = self._members[address] = EngineClient(EngineSocket(address, self._tls))
                self._add(client)
                client.open()
        for address, client in self._members.items():
            is_leaving = address not in addresses
            if is_leaving and not client.is_leaving:
                log.info("an engine leaves: %s", address)
            client.is_leaving = is_leaving
        self._move_requests()

    async def _close_leavers(self) -> None:
        """Close the clients that have left and whose requests have moved or ended."""
        for address, client in list(self._members.items()):
            if client.is_leaving and client.is_idle:
                del self._members[address]
                self.clients.remove(client)
                self._num_past_restarts += client.num_restarts
                await client.aclose()

    async def aclose(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.wait([self._watcher])
        await super().aclose()
