"""Starts gateways, processes in front of one engine, restarts them, and counts them together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from pathlib import Path

import msgspec
from prometheus_client import multiprocess

from engine.api import RunDirectory, SpeechEngine, child_environment
from realtime.api_keys import load_authenticator
from realtime.app import check_settings
from realtime.calls.gateway_hub import GatewayHub
from realtime.config import ServerConfig
from realtime.config_sections import AuthSettings
from realtime.engine_factory import connect_engine, share_engine
from realtime.gateway_plan import GatewayPlan, SharedUsageCounters
from realtime.metrics import MULTIPROCESS_FOLDER
from realtime.quota_history import restore_day_counts
from realtime.signals import STOP_SIGNALS, run_until_signal
from realtime.transports.listening_sockets import Ports, check_ports, open_listeners
from sessions.admission import counter_names
from sessions.quotas import WindowedCounts

log = logging.getLogger("voicewire.gateways")

READY = b"ready\n"
RESTART_PAUSE_S = 1.0

# ``-P`` keeps the current folder, and whatever lies in it, out of the imports.
GATEWAY_COMMAND = (sys.executable, "-P", "-m", "realtime.gateway")


def gateway_environment(metrics_folder: str) -> dict[str, str]:
    # NumPy would start a thread for each core in each gateway.
    return {"OPENBLAS_NUM_THREADS": "1"} | child_environment() | {MULTIPROCESS_FOLDER: metrics_folder}


class GatewaySupervisor:
    """The processes: ``launch`` them, ``run`` until SIGTERM or SIGINT, then ``aclose``."""

    def __init__(self, plan: GatewayPlan, metrics_folder: str) -> None:
        self._plan = plan
        self._metrics_folder = metrics_folder
        self._running: set[Process] = set()
        # Of those, without a plan yet.
        self._launched: list[Process] = []
        self._stopping = asyncio.Event()

    async def launch(self) -> None:
        """Start the processes, which import their modules and wait for their plans until ``run``."""
        count = self._plan.config.listen.gateways
        self._launched += await asyncio.gather(*(self._launch() for _ in range(count)))

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Run the gateways until a signal; raises ``ChildProcessError`` if one does not start."""
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._stop, number)
        columns = range(self._plan.config.listen.gateways)
        first = await asyncio.gather(*map(self._start, columns))
        on_ready()
        async with asyncio.TaskGroup() as keepers:
            for process, column in zip(first, columns, strict=True):
                keepers.create_task(self._supervise(process, column), name="voicewire gateway keeper")
            await self._stopping.wait()
            self._broadcast(signal.SIGTERM)

    async def aclose(self) -> None:
        """End the processes that are left."""
        self._broadcast(signal.SIGTERM)
        await asyncio.gather(*(process.wait() for process in self._running))

    def _stop(self, number: signal.Signals) -> None:
        """The second Ctrl-C is passed on: then gateways wait no longer for what they speak."""
        if self._stopping.is_set() and number is signal.SIGINT:
            self._broadcast(number)
        self._stopping.set()

    async def _supervise(self, process: Process, column: int) -> None:
        while True:
            await process.wait()
            self._plan_of(column).open_tally().clear()
            self._running.discard(process)
            multiprocess.mark_process_dead(process.pid, self._metrics_folder)  # type: ignore[no-untyped-call]
            if self._stopping.is_set():
                return
            log.error("gateway exited with status %s; restarting", process.returncode)
            while (again := await self._restart(column)) is None:
                if self._stopping.is_set():
                    return
            process = again

    async def _restart(self, column: int) -> Process | None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RESTART_PAUSE_S):
                await self._stopping.wait()
        try:
            return None if self._stopping.is_set() else await self._start(column)
        except ChildProcessError as error:
            log.error("%s", error)
            return None

    def _plan_of(self, column: int) -> GatewayPlan:
        return msgspec.structs.replace(self._plan, column=column)

    async def _launch(self) -> Process:
        process = await asyncio.create_subprocess_exec(
            *GATEWAY_COMMAND,
            stdin=PIPE,
            stdout=PIPE,
            process_group=0,  # not a session: niceness counts within one alone where the kernel groups by them
            env=gateway_environment(self._metrics_folder),
        )
        self._running.add(process)
        return process

    def _take_launched(self) -> Process | None:
        """Return one that still runs, if there is one."""
        while self._launched:
            process = self._launched.pop()
            if process.returncode is None:
                return process
            self._running.discard(process)
            log.error("gateway exited with status %s before it was needed; restarting", process.returncode)
        return None

    async def _start(self, column: int) -> Process:
        process = self._take_launched() or await self._launch()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(self._plan_of(column)) + b"\n")
        if await process.stdout.readline() != READY:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            self._running.discard(process)
            raise ChildProcessError("a gateway did not come up")
        return process

    def _broadcast(self, number: signal.Signals) -> None:
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)


def share_token_secret(auth: AuthSettings) -> AuthSettings:
    """Return settings with which all gateways have the same secret. With API keys a file holds it."""
    has_secret = auth.token_secret is not None or auth.keys_file is not None or auth.api_keys is not None
    return auth if has_secret else msgspec.structs.replace(auth, token_secret=secrets.token_hex())


async def serve_with_gateways(
    config: ServerConfig, on_ready: Callable[[Ports], None], shared: tuple[SpeechEngine, str] | None = None
) -> None:
    """Serve in front of the engines that ``config`` names, or those ``shared`` at their addresses.

    Raises ``ConfigError``, ``OSError`` or ``CheckpointError`` before ``on_ready``.
    """
    engine, addresses = shared or find_engines(config)
    # Before the model loads, and once: each gateway would find the same.
    await check_settings(config, connect_engine(addresses, config.engine))
    check_ports(config)
    reserved = open_listeners(config.listen, share_port=True)
    ports = reserved.ports
    listen = msgspec.structs.replace(config.listen, port=ports.main, tls_port=ports.tls)
    keys = load_authenticator(config.auth)
    counted = counter_names(keys.key_names)
    run_directory = RunDirectory()
    folder = run_directory.path
    plan = GatewayPlan(
        config=msgspec.structs.replace(config, listen=listen, auth=share_token_secret(config.auth)),
        engines=addresses,
        tally=str(folder / "tally"),
        counted=tuple(counted),
        quotas=str(folder / "quotas"),
        quota_names=tuple(keys.quota_names),
        exchange=str(folder / "exchange"),
    )
    supervisor = GatewaySupervisor(plan, str(folder))

    async def start() -> None:
        await supervisor.launch()
        if engine is not None:
            await engine.start()

    try:
        run_directory.make()
        SharedUsageCounters.make_file(Path(plan.tally), counted, config.listen.gateways)
        WindowedCounts.make_file(Path(plan.quotas), keys.quota_names, config.listen.gateways)
        async with GatewayHub().open(Path(plan.exchange)), contextlib.aclosing(supervisor):
            if not await run_until_signal(start()):
                return
            counts = WindowedCounts.in_file(Path(plan.quotas), keys.quota_names, column=0)
            await restore_day_counts(config.log, keys, counts)
            await supervisor.run(lambda: on_ready(ports))
    finally:
        if engine is not None:
            await engine.aclose()
        run_directory.remove()
        reserved.close()


def find_engines(config: ServerConfig) -> tuple[SpeechEngine | None, str]:
    """Return the engine to start, ``None`` if others run it, and the addresses for the gateways."""
    if config.engine.addresses:
        connect_engine(config.engine.addresses, config.engine)  # refuses what is wrong
        return None, config.engine.addresses
    return share_engine(config)
