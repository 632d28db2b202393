"""An engine behind a real socket on threads of the test, and a TCP proxy that can stop forwarding."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from engine.address import EngineAddress, TlsFiles
from engine.child import EngineProcess, host_command
from engine.host import EngineHost
from engine.launch import EngineThread
from engine.listener import EngineListener
from engine.process import child_environment
from tests.engine.test_launch import Switch, make
from tests.fakes.checksum_model import ChecksumFamily
from tests.realtime.certificates import CertificateAuthority


def tls_files(authority: CertificateAuthority, name: str) -> TlsFiles:
    certificate, key = authority.issue(name)
    return TlsFiles(str(certificate), str(key), str(authority.certificate))


@contextmanager
def running_process(process: EngineProcess) -> Iterator[EngineAddress]:
    """Run the process for clients on any event loop; it is alive until the end."""
    process._folder.make()
    command = host_command(process.settings)
    with subprocess.Popen(command, env=child_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as host:
        assert host.stdout is not None
        assert host.stdout.readline() == b"ready\n"
        yield process.address
        host.communicate()
    asyncio.run(process.stop())


class ServedEngine:
    """It takes no CPU time until a request comes."""

    def __init__(
        self,
        shape: ChecksumFamily,
        listen: str = "tcp://127.0.0.1:0",
        tls: TlsFiles | None = None,
        fingerprint: str = "",
        **settings: Any,
    ) -> None:
        # No request is refused on busy cores.
        endpoint = make(shape, Switch(), **({"admission_utilization": 1e6} | settings))._endpoint
        assert isinstance(endpoint, EngineThread)
        loaded = endpoint._load()
        self.host = EngineHost(loaded.make_engine, loaded.info, endpoint.config, None, lambda _: None, fingerprint)
        self.host.start()
        self.listener = EngineListener(EngineAddress.parse(listen), tls)
        self._thread = threading.Thread(target=self.host.serve, args=(self.listener,), daemon=True)
        self._thread.start()

    @property
    def address(self) -> EngineAddress:
        return self.listener.address

    @property
    def num_requests(self) -> int:
        return sum(len(gateway.active) for gateway in list(self.host.gateways.values()))

    def stop(self) -> None:
        self.listener.close()
        self.host.stop()
        self._thread.join()


class StoppableProxy:
    """Forwards bytes to ``target``, and nothing while ``is_stopped``: what is sent then arrives afterwards."""

    address: EngineAddress

    def __init__(self, target: EngineAddress) -> None:
        self._target = target
        self._forwarding = asyncio.Event()
        self._forwarding.set()
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[StoppableProxy]:
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.address = EngineAddress(host="127.0.0.1", port=server.sockets[0].getsockname()[1])
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()

    def stop(self) -> None:
        self._forwarding.clear()

    def go_on(self) -> None:
        self._forwarding.set()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(self._target.host, self._target.port)
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            self._tasks.add(asyncio.create_task(self._forward(source, sink)))

    async def _forward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                await self._forwarding.wait()
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.close()


def write_addresses(file: Path, *lines: object) -> None:
    """Replace the file as a whole."""
    new = file.with_suffix(".new")
    new.write_text("".join(f"{line}\n" for line in lines))
    new.rename(file)
