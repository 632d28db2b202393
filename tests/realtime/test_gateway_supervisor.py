"""Gateways in front of one engine: their shared counters, and real processes on one port."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import msgspec
import numpy as np
import numpy.typing as npt
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidMessage, InvalidStatus

from engine.process import OTHER_DESCRIPTORS, RunDirectory
from realtime import gateway_supervisor
from realtime.app import create_app, serve
from realtime.client import NativeClient, open_session
from realtime.config import ConfigError, ServerConfig, load_config
from realtime.errors import RequestRefused
from realtime.gateway_plan import GatewayPlan, SharedUsageCounters
from realtime.gateway_supervisor import (
    GATEWAY_COMMAND,
    GatewaySupervisor,
    gateway_environment,
    serve_with_gateways,
)
from realtime.protocol import events as ev
from realtime.transports.listening_sockets import check_ports
from realtime.voice_cloner import ConcurrencyLimit
from sessions.admission import CONNECTIONS, UPLOADS, LocalUsageCounters, ResponseLimiter, counter_names, key_counter
from sessions.config import RegistryLimits
from sessions.errors import LimitExceeded
from tests.fakes.checkpoints import write_checkpoint
from tests.fakes.engine import FakeSpeechEngine
from tests.realtime.calls.test_sockets import told
from tests.realtime.certificates import self_signed
from tests.realtime.live_server import NO_CERTIFICATES, SpokenResponse, close_code, hear, next_of
from tests.realtime.server_process import wire_address

TEXT = "Hello there, how are you today?"
# The checkpoint is random and ends nothing by itself.
BURST = ev.NativeSpeechSettings(pace="burst", max_frames=12)
NUM_GATEWAYS = 2
MAX_CONNECTIONS = 9
PATIENCE_S = 120.0


class Served:
    def __init__(self, process: subprocess.Popen[bytes], certificate: Path, log: Path) -> None:
        assert process.stdout is not None
        self.log = log
        self.process = psutil.Process(process.pid)
        self.tls_url = wire_address(process.stdout, "tls").removesuffix("/v1/speech")
        self.url = wire_address(process.stdout).removesuffix("/v1/speech")
        self.trust = ssl.create_default_context(cafile=str(certificate))

    def gateways(self) -> list[psutil.Process]:
        return gateways_of(self.process)

    async def metric(self, name: str) -> float:
        async with httpx.AsyncClient(trust_env=False, verify=NO_CERTIFICATES) as http:
            text = (await http.get(self.url.replace("ws:", "http:") + "/metrics")).text
        return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"voicewire_{name} "))

    async def health_until_good(self) -> list[int]:
        """What /healthz said until it was well for a while; each request may reach another gateway."""
        statuses: list[int] = []
        async with asyncio.timeout(PATIENCE_S):
            while statuses[-10:] != [200] * 10:
                async with httpx.AsyncClient(trust_env=False, verify=NO_CERTIFICATES) as http:
                    statuses.append((await http.get(self.url.replace("ws:", "http:") + "/healthz")).status_code)
                await asyncio.sleep(0.05)
        return statuses

    async def sessions_on_each(self, query: str = "") -> dict[int, NativeClient]:
        """One session on each gateway, by its process id; the system chooses where a connection goes."""
        found: dict[int, NativeClient] = {}
        async with asyncio.timeout(PATIENCE_S):
            while len(found) < NUM_GATEWAYS:
                try:
                    client = await open_session(self.url + query)
                except ConnectionRefusedError:  # an earlier test ended gateways, and none listens again yet
                    await asyncio.sleep(0.05)
                    continue
                pid = self.owner_of(client)
                if pid in found:
                    await client.aclose()
                else:
                    found[pid] = client
        return found

    def owner_of(self, client: NativeClient) -> int:
        return self.process_of(client._socket.local_address)

    def process_of(self, ours: object) -> int:
        """The gateway that has the connection from this address."""
        for gateway in self.gateways():
            if any(connection.raddr == ours for connection in gateway.net_connections("tcp")):
                return gateway.pid
        raise AssertionError("no gateway has this connection")


def gateways_of(server: psutil.Process) -> list[psutil.Process]:
    return [child for child in server.children() if "realtime.gateway" in command_of(child)]


def command_of(process: psutil.Process) -> list[str]:
    """Nothing, of one that has just ended."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = write_checkpoint(tmp_path_factory.mktemp("checkpoint"))
    config = folder / "server.toml"
    config.write_text("engine.options.lazy_graph_capture = true\ndebug.engine.admission_utilization = 1e6\n")
    command = [sys.executable, "-m", "realtime.cli", "serve", "--model", str(folder), "--port", "0"]
    certificate, key = self_signed(folder)
    command += ["--config", str(config), "--tls-certificate", str(certificate), "--tls-key", str(key)]
    command += ["--set", "listen.tls_port=0"]
    return [*command, "--gateways", str(NUM_GATEWAYS), "--set", f"limits.max_connections={MAX_CONNECTIONS}"]


def start_server(command: list[str], log: Path = Path(os.devnull), **environment: str) -> subprocess.Popen[bytes]:
    environment |= {"VOICEWIRE_DEBUG": "1"}
    with log.open("wb") as stderr:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, env=os.environ | environment)


@pytest.fixture(scope="module")
def served(command: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    log = tmp_path_factory.mktemp("log") / "server.log"
    with start_server(command, log) as process:
        yield Served(process, Path(command[command.index("--tls-certificate") + 1]), log)
        process.terminate()


async def speaks(client: NativeClient, response_id: str) -> None:
    await client.send(ev.ResponseCreate(response_id=response_id, settings=BURST, text=TEXT, end=True))
    done = (await hear(client, response_id)).done
    assert (done.status, done.error) == ("completed", None)


@pytest.mark.timeout(300)
async def test_gateways_share_a_port_an_engine_and_their_metrics(served: Served) -> None:
    clients = await served.sessions_on_each()
    await asyncio.gather(*(speaks(client, "r") for client in clients.values()))
    assert await served.metric('responses_total{status="completed"}') == NUM_GATEWAYS
    await asyncio.sleep(0.4)  # each gateway reads its gauges so often
    assert await served.metric("open_connections") == NUM_GATEWAYS
    assert await served.metric("resident_memory_bytes") > sum(g.memory_info().rss for g in served.gateways())
    for client in clients.values():
        await client.aclose()


def test_gateways_share_session_but_not_process_group(served: Served) -> None:
    gateways = [gateway.pid for gateway in served.gateways()]
    assert {os.getsid(pid) for pid in gateways} == {os.getsid(served.process.pid)}
    assert os.getpgid(served.process.pid) not in {os.getpgid(pid) for pid in gateways}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the size of the table from /proc")
def test_connections_do_not_enlarge_the_table_of_descriptors(served: Served) -> None:
    for process in (served.process, *served.gateways()):
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert int(status.partition("FDSize:")[2].split()[0]) >= 2 * MAX_CONNECTIONS + OTHER_DESCRIPTORS


@pytest.mark.timeout(300)
async def test_tls_port_is_shared_by_all_gateways(served: Served) -> None:
    found: dict[int, NativeClient] = {}
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < NUM_GATEWAYS:
            client = await open_session(served.tls_url, trust=served.trust)
            if (pid := served.owner_of(client)) in found:
                await client.aclose()
            else:
                found[pid] = client
    for client in found.values():
        await speaks(client, "r")
        await client.aclose()


@pytest.mark.timeout(300)
async def test_killed_gateway_drops_only_its_sessions_and_restarts(served: Served) -> None:
    (unlucky_pid, unlucky), (_, lucky) = (await served.sessions_on_each()).items()
    await unlucky.send(ev.ResponseCreate(response_id="r", text=TEXT))
    await next_of(unlucky, ev.ResponseCreated)
    os.kill(unlucky_pid, signal.SIGKILL)
    assert await close_code(unlucky) == 1006
    await speaks(lucky, "r")
    await lucky.aclose()
    async with asyncio.timeout(PATIENCE_S):
        while unlucky_pid in (pids := {g.pid for g in served.gateways()}) or len(pids) < NUM_GATEWAYS:
            await asyncio.sleep(0.1)
    for client in (await served.sessions_on_each()).values():
        await speaks(client, "r")
        await client.aclose()


@pytest.mark.timeout(300)
async def test_session_resumes_at_the_other_gateway(served: Served) -> None:
    (_, first), (other_pid, second) = (await served.sessions_on_each("?resume=true")).items()
    settings = ev.NativeSpeechSettings(
        format=ev.NativeAudioFormat(encoding="pcm_s16le"), pace="lead", lead_ms=400, seed=7, max_frames=40
    )
    await first.send(ev.ResponseCreate(response_id="r", settings=settings, text=TEXT, end=True))
    audio = [await next_of(first, ev.AudioMessage)]
    first.abort()
    position = ev.ResumePosition(response_id="r", received_samples=end_of(audio[-1]))
    created = first.created
    await second.send(ev.SessionResume(created.session_id, created.resume_token, responses=(position,)))
    rest = await hear(second)
    audio += rest.audio
    assert served.owner_of(second) == other_pid
    assert [message.sample_time for message in audio] == [0, *map(end_of, audio[:-1])]
    assert (rest.done.status, end_of(audio[-1])) == ("completed", rest.done.audio_samples)
    await second.send(ev.SessionClose())
    assert await close_code(second) == 1000


async def test_resume_from_a_killed_gateway_is_refused_at_once(served: Served) -> None:
    (owner_pid, first), (_, second) = (await served.sessions_on_each("?resume=true")).items()
    await first.send(ev.ResponseCreate(response_id="r", text=TEXT))
    await next_of(first, ev.ResponseCreated)
    os.kill(owner_pid, signal.SIGKILL)
    assert await close_code(first) == 1006
    created = first.created
    await second.send(ev.SessionResume(created.session_id, created.resume_token))
    assert (await next_of(second, ev.ErrorEvent)).code == "resume_refused"
    await second.send(ev.ResponseCreate(response_id="own", settings=BURST, text=TEXT, end=True))
    assert (await hear(second)).done.status == "completed"
    await second.aclose()
    for client in (await served.sessions_on_each()).values():
        await client.aclose()


def end_of(message: ev.AudioMessage) -> int:
    """Sample time behind a message of PCM."""
    return message.sample_time + sum(map(len, message.packets)) // 2


async def test_agents_on_any_gateway_speak_into_a_call_on_one(served: Served) -> None:
    agents: dict[int, ClientConnection] = {}
    while len(agents) < NUM_GATEWAYS:
        agent = await connect(served.url + "/v1/calls", proxy=None)
        pid = served.process_of(agent.local_address)
        if pid in agents:
            await agent.close()
        else:
            agents[pid] = agent
    async with connect(served.url + "/v1/calls/vonage", proxy=None) as line:
        holder = served.process_of(line.local_address)
        await line.send('{"event":"websocket:connected","content-type":"audio/l16;rate=16000","uuid":"U1"}')
        for agent in agents.values():
            call_id = (await told(agent, "call.connected"))["call_id"]
        async with asyncio.TaskGroup() as tasks:
            returning = tasks.create_task(return_marks(line))
            for name, agent in zip("ab", agents.values(), strict=True):
                await agent.send(json.dumps({"type": "say", "call_id": call_id, "text": "Hi.", "reply_id": name}))
                assert (await told(agent, "reply.accepted"))["reply_id"] == name
                for one in agents.values():
                    assert (await told(one, "reply.played"))["reply_id"] == name
            returning.cancel()
        await agents.pop(holder).close()
        [agent] = agents.values()
        os.kill(holder, signal.SIGKILL)
        assert (await told(agent, "call.hung_up"))["reason"] == "internal_error"
        await agent.close()
    async with asyncio.timeout(PATIENCE_S):
        while holder in (pids := {g.pid for g in served.gateways()}) or len(pids) < NUM_GATEWAYS:
            await asyncio.sleep(0.1)
    for client in (await served.sessions_on_each()).values():
        await client.aclose()


async def return_marks(line: ClientConnection) -> None:
    async for message in line:
        if isinstance(message, str) and (asked := json.loads(message))["action"] == "notify":
            await line.send(json.dumps({"event": "websocket:notify", "payload": asked["payload"]}))


@pytest.mark.timeout(300)
async def test_responses_go_on_after_their_engine_was_killed(served: Served) -> None:
    """On every gateway, with the samples of an uninterrupted response."""
    pcm = ev.NativeAudioFormat(encoding="pcm_s16le", sample_rate=24_000)
    spoken = ev.NativeSpeechSettings(seed=5, lead_ms=400, max_frames=30, format=pcm)
    clients = list((await served.sessions_on_each()).values())
    uncut = await respond(clients[0], "uncut", msgspec.structs.replace(spoken, pace="burst"))
    responses = [asyncio.create_task(respond(client, "cut", spoken)) for client in clients]
    await asyncio.sleep(0.5)
    [engine] = [child for child in served.process.children() if "engine.host" in child.cmdline()]
    engine.kill()
    assert 503 in await served.health_until_good()
    for response in await asyncio.gather(*responses):
        assert response.done.status == "completed", response.done
        np.testing.assert_allclose(samples_of(response), samples_of(uncut), atol=2)
    for client in clients:
        await speaks(client, "again")
        await client.aclose()


async def respond(client: NativeClient, response_id: str, spoken: ev.NativeSpeechSettings) -> SpokenResponse:
    await client.send(ev.ResponseCreate(response_id=response_id, settings=spoken, text=TEXT, end=True))
    return await hear(client, response_id)


def samples_of(response: SpokenResponse) -> npt.NDArray[np.int16]:
    return np.frombuffer(b"".join(packet for message in response.audio for packet in message.packets), np.int16)


async def session_or_status(url: str) -> NativeClient | int:
    """0 when it fell to a gateway in the moment of its death."""
    try:
        return await open_session(url)
    except InvalidStatus as refused:
        return refused.response.status_code
    except (OSError, InvalidMessage):
        return 0


async def open_all(served: Served) -> list[NativeClient]:
    """Until one more is refused."""
    clients: list[NativeClient] = []
    async with asyncio.timeout(PATIENCE_S):
        while (found := await session_or_status(served.url)) != 429:
            if isinstance(found, NativeClient):
                clients.append(found)
            assert len(clients) <= MAX_CONNECTIONS
    return clients


@pytest.mark.timeout(300)
async def test_a_limit_holds_for_all_gateways_and_outlives_one_of_them(served: Served) -> None:
    await served.health_until_good()
    clients = await open_all(served)
    assert len(clients) == MAX_CONNECTIONS
    owners = [served.owner_of(client) for client in clients]
    assert len(set(owners)) == NUM_GATEWAYS, "the system spread them"
    psutil.Process(owners[0]).kill()
    left = [client for client, owner in zip(clients, owners, strict=True) if owner != owners[0]]
    again: list[NativeClient] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(left) + len(again) < MAX_CONNECTIONS:
            again += await open_all(served)
            await asyncio.sleep(0.05)
    for client in (*clients, *again):
        await client.aclose()


@pytest.mark.timeout(300)
async def test_a_signal_drains_every_gateway(served: Served) -> None:
    clients = await served.sessions_on_each()
    num_log_bytes = served.log.stat().st_size
    for client in clients.values():
        settings = ev.NativeSpeechSettings(pace="burst", max_frames=60)
        await client.send(ev.ResponseCreate(response_id="r", settings=settings, text=TEXT, end=True))
        await next_of(client, ev.AudioMessage)
    family = [served.process, *served.process.children(recursive=True)]
    for member in family:  # as systemd stops a service: the engine's process, too, is told
        member.terminate()
    for client in clients.values():
        assert (await hear(client)).done.status == "completed"
        assert await close_code(client) == 1012
    deadline_s = time.monotonic() + PATIENCE_S
    while any(member.is_running() and member.status() != psutil.STATUS_ZOMBIE for member in family):
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.1)
    assert b"line to the exchange broke" not in served.log.read_bytes()[num_log_bytes:]


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Of a name that leaves room for those of sockets."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@pytest.mark.slow  # a second server; ``tests/engine/test_process.py`` guards the folder of a process
@pytest.mark.timeout(300)
def test_what_a_killed_server_left_goes_with_the_next(command: list[str], temporary: Path) -> None:
    with start_server(command, TMPDIR=str(temporary)) as process:
        assert process.stdout is not None
        wire_address(process.stdout)
        family = psutil.Process(process.pid).children(recursive=True)
        process.kill()
    psutil.wait_procs(family, PATIENCE_S)
    assert {path.name for path in temporary.rglob("*")} >= {"engine.sock", "exchange"}
    following = RunDirectory()
    following.make()
    following.remove()
    assert list(temporary.iterdir()) == []


def test_the_plan_of_a_gateway_survives_its_way(tmp_path: Path) -> None:
    config = load_config(flags={"listen.gateways": 3, "auth.api_keys": "a:a-key-of-enough-characters"})
    plan = GatewayPlan(
        config=config,
        engines=f"unix:{tmp_path}",
        tally="tally",
        counted=("connections",),
        exchange="exchange",
        column=2,
    )
    assert msgspec.json.decode(msgspec.json.encode(plan), type=GatewayPlan) == plan


def test_a_gateway_imports_nothing_from_the_current_folder(tmp_path: Path) -> None:
    for name in ("json", "msgspec", "realtime"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('hijacked')")
    ended = subprocess.run(
        GATEWAY_COMMAND,
        cwd=tmp_path,
        env=gateway_environment(str(tmp_path)),
        input=b"no plan\n",
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert b"hijacked" not in ended.stderr
    assert b"DecodeError" in ended.stderr, "it came as far as reading its plan"


async def test_a_gateway_that_does_not_come_up_is_ended_and_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says_who_it_is = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    started: list[asyncio.subprocess.Process] = []
    start = asyncio.create_subprocess_exec

    async def remember(*command: str, **how: object) -> asyncio.subprocess.Process:
        started.append(await start(*command, **how))  # type: ignore[arg-type]
        return started[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", remember)
    monkeypatch.setattr(gateway_supervisor, "GATEWAY_COMMAND", (sys.executable, "-c", says_who_it_is))
    monkeypatch.setattr(gateway_supervisor, "RESTART_PAUSE_S", 0.01)
    keeper = GatewaySupervisor(
        GatewayPlan(config=ServerConfig(), engines="", tally="", counted=(), exchange=""), str(tmp_path)
    )
    assert await keeper._restart(0) is None
    try:
        assert [process.returncode for process in started] == [-signal.SIGKILL]
        assert not keeper._running
    finally:
        for process in started:
            if process.returncode is None:
                process.kill()
                await process.wait()


class UnstartedEngine(FakeSpeechEngine):
    async def start(self) -> None:
        raise AssertionError("its model would load")


async def test_wrong_setting_is_found_before_the_model_loads() -> None:
    """By the parent: without it, each gateway would find it after the load."""
    config = load_config(flags={"listen.gateways": 2, "listen.port": 0, "agent.stt_url": "http://127.0.0.1:9"})
    with pytest.raises(ConfigError, match=r"agent\.stt_url needs"):
        await serve_with_gateways(config, lambda ports: None, (UnstartedEngine(), "unix:/nowhere"))


class EngineThatLoads(FakeSpeechEngine):
    """Loads until it has seen two gateways."""

    async def start(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(gateways := gateways_of(psutil.Process())) < NUM_GATEWAYS:
                await asyncio.sleep(0.01)
        self.seen = gateways


class EngineThatFails(EngineThatLoads):
    async def start(self) -> None:
        await super().start()
        raise ChildProcessError("it does not load")


class EngineThatOutlivesGateway(EngineThatLoads):
    """Ends one of the gateways while it loads."""

    async def start(self) -> None:
        await super().start()
        ended = self.seen.pop()
        ended.kill()
        async with asyncio.timeout(PATIENCE_S):
            while psutil.pid_exists(ended.pid):
                await asyncio.sleep(0.01)


async def test_gateways_start_beside_the_engine_and_end_with_it() -> None:
    engine = EngineThatFails()
    config = load_config(flags={"listen.gateways": NUM_GATEWAYS, "listen.port": 0})
    with pytest.raises(ChildProcessError, match="does not load"):
        await serve_with_gateways(config, lambda ports: None, (engine, "unix:/nowhere"))
    assert not any(gateway.is_running() for gateway in engine.seen)


@pytest.mark.parametrize("kind", [EngineThatLoads, EngineThatOutlivesGateway])
async def test_gateways_started_beside_the_engine_serve_and_those_that_end_are_replaced(
    kind: type[EngineThatLoads], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Ready without an engine.
    command = sys.executable, "-c", "input(); print('ready', flush=True); input()", "realtime.gateway"
    monkeypatch.setattr(gateway_supervisor, "GATEWAY_COMMAND", command)
    engine, serving = kind(), list[psutil.Process]()

    def on_ready(ports: object) -> None:
        serving.extend(gateways_of(psutil.Process()))
        signal.raise_signal(signal.SIGTERM)

    config = load_config(flags={"listen.gateways": NUM_GATEWAYS, "listen.port": 0})
    await serve_with_gateways(config, on_ready, (engine, "unix:/nowhere"))
    assert len(serving) == NUM_GATEWAYS
    assert set(engine.seen) <= set(serving)
    assert ("gateway exited with status -9" in caplog.text) == (len(engine.seen) < NUM_GATEWAYS)


async def test_gateways_that_all_end_by_themselves_end_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gateway_supervisor, "GATEWAY_COMMAND", (sys.executable, "-c", "exit(3)"))
    listen = msgspec.structs.replace(ServerConfig().listen, gateways=NUM_GATEWAYS)
    plan = GatewayPlan(config=ServerConfig(listen=listen), engines="", tally="", counted=(), exchange="")
    keeper = GatewaySupervisor(plan, str(tmp_path))
    await keeper.launch()
    await asyncio.gather(*(process.wait() for process in keeper._launched))
    with pytest.raises(ChildProcessError, match="did not come up"):
        await keeper.run(lambda: None)
    await keeper.aclose()
    assert caplog.text.count("gateway exited with status 3") == NUM_GATEWAYS


def test_a_gateway_without_a_plan_ends_with_its_parent(tmp_path: Path) -> None:
    ended = subprocess.run(
        GATEWAY_COMMAND, env=gateway_environment(str(tmp_path)), input=b"", capture_output=True, check=True, timeout=60
    )
    assert not ended.stderr


@pytest.mark.parametrize("setting", ["calls.audiosocket", "wyoming.address"])
async def test_taken_port_is_found_before_the_model_loads(setting: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        config = load_config(flags={"listen.gateways": 2, "listen.port": 0, setting: address})
        with pytest.raises(OSError, match=f"{setting} = {address}: Address already in use"):
            await serve_with_gateways(config, lambda ports: None, (UnstartedEngine(), "unix:/nowhere"))


async def test_taken_port_is_found_before_the_model_loads_without_gateways() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        config = load_config(flags={"listen.port": 0, "wyoming.address": address})
        app = create_app(config, UnstartedEngine())
        with pytest.raises(OSError, match=f"wyoming.address = {address}: Address already in use"):
            await serve(config, app)
        await app.state.server.aclose()


async def test_taken_udp_port_is_found_before_the_model_loads() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        config = load_config(flags={"listen.port": 0, "xiaozhi.mqtt": "127.0.0.1:0", "xiaozhi.udp": address})
        with pytest.raises(OSError, match=f"xiaozhi.udp = {address}: Address already in use"):
            check_ports(config)


@pytest.mark.parametrize("num_gateways", [1, 2])
@pytest.mark.parametrize("other", ["listen.port", "calls.audiosocket"])
async def test_two_settings_with_one_port_are_refused(num_gateways: int, other: str) -> None:
    values = {"listen.port": 5999} | ({other: "0.0.0.0:5998"} if other != "listen.port" else {})
    port = 5999 if other == "listen.port" else 5998
    config = load_config(flags=values | {"listen.gateways": num_gateways, "wyoming.address": f"127.0.0.1:{port}"})
    with pytest.raises(ConfigError, match=f"wyoming.address = 127.0.0.1:{port}: must have another port than {other}"):
        check_ports(config)


NAMES = counter_names(["ann", "ben"])
NUM_COLUMNS = 3


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tally"


def columns(file: Path) -> list[SharedUsageCounters]:
    SharedUsageCounters.make_file(file, NAMES, NUM_COLUMNS)
    return [SharedUsageCounters(file, NAMES, column) for column in range(NUM_COLUMNS)]


changes = st.tuples(st.integers(0, NUM_COLUMNS - 1), st.sampled_from(NAMES), st.sampled_from([1, -1, 2]))


@given(st.lists(changes, max_size=30), st.integers(0, NUM_COLUMNS - 1))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_shared_counters_sum_without_departed_process(file: Path, made: list[tuple[int, str, int]], gone: int) -> None:
    tallies = columns(file)
    for column, name, by in made:
        tallies[column].add(name, by)
    everything: Counter[str] = Counter()
    for _, name, by in made:
        everything[name] += by
    assert all(tally.total(name) == everything[name] for tally in tallies for name in NAMES)
    SharedUsageCounters(file, NAMES, gone).clear()
    for column, name, by in made:
        everything[name] -= by * (column == gone)
    assert all(tally.total(name) == everything[name] for tally in tallies for name in NAMES)


def test_a_name_that_came_later_is_counted_by_each_alone(file: Path) -> None:
    one, other, _ = columns(file)
    one.add(key_counter(CONNECTIONS, "zoe"), 1)
    assert (one.total("connections of zoe"), other.total("connections of zoe")) == (1, 0)


@pytest.mark.parametrize("shared", [False, True])
def test_response_limits_hold_across_processes(file: Path, shared: bool) -> None:
    tallies = columns(file)[:2] if shared else [LocalUsageCounters()] * 2
    here, there = (
        ResponseLimiter(RegistryLimits(max_active_responses=3, max_active_responses_per_key=2), tally, lambda _: False)
        for tally in tallies
    )
    here.acquire("ann")
    there.acquire("ann")
    for admission in (here, there):
        with pytest.raises(LimitExceeded, match="max_active_responses_per_key is 2"):
            admission.acquire("ann")
    there.acquire("ben")
    with pytest.raises(LimitExceeded, match="max_active_responses is 3"):
        here.check("ben")
    assert (here.num_active, there.num_active) == (1, 2)
    there.release("ann")
    here.acquire("ann")


def test_a_gate_is_one_for_all_processes(file: Path) -> None:
    tallies = columns(file)
    here, there, _ = (ConcurrencyLimit("max_uploads", 2, 1_000, tally, UPLOADS) for tally in tallies)
    with here.acquire(), there.acquire():
        for gate in (here, there):
            with pytest.raises(RequestRefused, match="max_uploads is 2"), gate.acquire():
                pass
        assert (here.num_inside, there.num_inside) == (1, 1)
        SharedUsageCounters(file, NAMES, 1).clear()
        with here.acquire():
            pass
    assert here.num_inside == there.num_inside == 0


def test_connections_whose_key_is_to_come_are_counted_for_all(file: Path) -> None:
    one, other, _ = columns(file)
    one.add(key_counter(CONNECTIONS, ""), 1)
    assert other.total(key_counter(CONNECTIONS, "")) == 1
