"""Clusters on a real Ray: what is killed, added, upgraded and removed while callers speak through the door."""

from __future__ import annotations

import asyncio
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import httpx2 as httpx
import msgspec
import psutil
import pytest

from realtime.cluster.config import ClusterConfig, DoorSettings, GatewayReplicas
from realtime.cluster.coordinator import WATERMARK_KEY
from realtime.cluster.scaling import ReplicaStatus
from tests.cluster.callers import load, speak_reply, speakers
from tests.cluster.conftest import FAKE_GATEWAY, command_of, marked
from tests.realtime.live_server import EMBEDDING_SIZE, NO_CERTIFICATES, WAIT_S

pytestmark = [pytest.mark.cluster("ray", "haproxy"), pytest.mark.timeout(540)]

PROGRAMS = {"gateway": FAKE_GATEWAY, "engine": (sys.executable, "-m", "tests.cluster.fake_engine")}
RAY = Path(sys.executable).with_name("ray")
LEXICON = {"entries": {"NGINX": "engine x"}}
# An actor starts in 5 s on idle cores, and eight of them share two.
READY_S = 300.0


class Cluster:
    """A cluster that runs; ``config`` is changed with ``up``."""

    def __init__(self, mark: str, config: ClusterConfig) -> None:
        self._mark = mark
        self.config = config

    async def up(self, **gateway: object) -> None:
        from realtime.cluster import deploy

        changed = msgspec.structs.replace(self.config.gateway, **gateway)
        self.config = msgspec.structs.replace(self.config, gateway=changed)
        await asyncio.to_thread(deploy.up, self.config, PROGRAMS)

    async def ready(self) -> None:
        from realtime.cluster import deploy

        await asyncio.to_thread(deploy.wait_until_ready, self.config.name, READY_S)

    async def replicas(self, kind: str = "gateway", state: str = "ready") -> list[ReplicaStatus]:
        status = await status_of(self.config)
        return [one for one in status.replicas if one.kind == kind and one.state == state]

    async def until(self, condition: Callable[[list[ReplicaStatus]], bool]) -> list[ReplicaStatus]:
        """Wait until the ready gateways are as wanted, and return them."""
        async with asyncio.timeout(READY_S):
            while not condition(found := await self.replicas()):
                await asyncio.sleep(0.2)
        return found

    async def url(self) -> str:
        return f"ws://127.0.0.1:{self.config.door.port}"

    def program(self, replica: ReplicaStatus) -> psutil.Process:
        """The process that listens on the replica's port."""
        for process in marked(self._mark):
            with suppress(psutil.Error):
                sockets = process.net_connections()
                if any(one.laddr.port == replica.port for one in sockets if one.status == psutil.CONN_LISTEN):
                    return process
        raise AssertionError(f"no process listens for {replica}")


@pytest.fixture
def open_cluster(ray_here: str, free_port: int):
    @asynccontextmanager
    async def open_cluster(**settings: object) -> AsyncIterator[Cluster]:
        from realtime.cluster import deploy

        config = ClusterConfig(
            name=f"test-{secrets.token_hex(4)}",
            door=DoorSettings(port=free_port, haproxy=True),
            scale_down_delay_s=1.0,
            **settings,
        )
        cluster = Cluster(ray_here, config)
        try:
            await cluster.up()
            await cluster.ready()
            yield cluster
        finally:
            await asyncio.to_thread(deploy.down, config.name, READY_S)
        assert [one for one in marked(ray_here) if "realtime.cluster.child" in command_of(one)] == []

    return open_cluster


def two_gateways(**settings: object) -> GatewayReplicas:
    return GatewayReplicas(min_replicas=2, max_replicas=2, **settings)


async def test_gateway_kill_cuts_no_other_reply(open_cluster):
    async with open_cluster(gateway=two_gateways()) as cluster:
        killed, other = await cluster.replicas()

        async def url() -> str:
            return other.url

        async with load(url, num_callers=10) as work:
            lost = [asyncio.create_task(speak_reply(killed.url, "x" * 200)) for _ in range(4)]
            await cluster.until(lambda found: any(one.num_active_responses == 4 for one in found))
            cluster.program(killed).kill()
            assert all(outcome.startswith("cut") for outcome in await asyncio.gather(*lost))
            await cluster.until(lambda found: len(found) == 2 and killed.name not in [one.name for one in found])
        assert set(work.outcomes) == {"completed"}
        assert await speak_reply(await cluster.url(), "x") == "completed"


async def test_gateways_scale_with_load_and_cut_nothing(open_cluster):
    """Two callers need one gateway of ten places at 70 %, twelve need two."""
    gateways = GatewayReplicas(min_replicas=1, max_replicas=2, places=10)
    async with open_cluster(gateway=gateways) as cluster, load(cluster.url, num_callers=2) as few:
        async with load(cluster.url, num_callers=12) as many:
            both = await cluster.until(lambda found: len(found) == 2)
            await cluster.until(lambda found: all(one.num_active_responses for one in found))
        await cluster.until(lambda found: len(found) == 1)
        async with asyncio.timeout(READY_S):
            while len(await cluster.replicas(state="draining")):
                await asyncio.sleep(0.2)
        assert len(both) == 2
    assert (set(few.outcomes), set(many.outcomes)) == ({"completed"}, {"completed"})


async def test_rolling_upgrade_cuts_nothing_and_keeps_capacity(open_cluster):
    async with open_cluster(gateway=two_gateways()) as cluster, load(cluster.url, num_callers=12) as work:
        before = {one.name for one in await cluster.replicas()}
        await cluster.up(settings={"limits.max_connections": 1_234})
        numbers = []

        def replaced(found: list[ReplicaStatus]) -> bool:
            numbers.append(len(found))
            return len(found) == 2 and not before & {one.name for one in found}

        await cluster.ready()
        await cluster.until(replaced)
        assert min(numbers) >= 2
        assert len(await cluster.replicas("engine")) == 1
    assert set(work.outcomes) == {"completed"}


@contextmanager
def another_machine() -> Iterator[None]:
    """A second node of Ray on this machine."""
    import ray

    address = ray.get_runtime_context().gcs_address
    command = [RAY, "start", f"--address={address}", "--num-cpus=16", "--disable-usage-stats", "--block"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as node:
        try:
            yield
        finally:
            node.terminate()


async def test_machine_that_leaves_cuts_nothing(open_cluster):
    """Its replicas drain, and others start on the other machine. The door stays."""
    from realtime.cluster import deploy
    from realtime.cluster.actors import alive_nodes

    with ExitStack() as machines:
        async with open_cluster(gateway=two_gateways()) as cluster, load(cluster.url, num_callers=8) as work:
            [left] = {one.node for one in await cluster.replicas()}
            with pytest.raises(deploy.ClusterError, match="no other machine"):
                await asyncio.to_thread(deploy.leave, cluster.config.name, READY_S)
            machines.enter_context(another_machine())
            async with asyncio.timeout(READY_S):
                while len(alive_nodes()) < 2:
                    await asyncio.sleep(0.2)
            await asyncio.to_thread(deploy.leave, cluster.config.name, READY_S)
            await cluster.ready()
            gateways, engines, doors = [await cluster.replicas(kind) for kind in ("gateway", "engine", "door")]
            assert (len(gateways), len(engines)) == (2, 1)
            assert {one.node for one in (*gateways, *engines)}.isdisjoint({left, ""})
            assert [one.node for one in doors] == [left]
        assert set(work.outcomes) == {"completed"}


async def test_lost_controller_and_actor_cut_nothing(open_cluster):
    """A new controller adopts the replicas. The gateway of a killed actor ends its replies and is replaced."""
    import ray

    from realtime.cluster import deploy

    async with open_cluster(gateway=two_gateways()) as cluster, load(cluster.url, num_callers=8) as work:
        before = await cluster.replicas()
        ray.kill(deploy.find_controller(cluster.config.name), no_restart=False)
        await cluster.ready()
        assert {one.name for one in await cluster.replicas()} == {one.name for one in before}
        lost = before[0]
        await cluster.until(lambda found: all(one.num_active_responses for one in found))
        gateway = cluster.program(lost)
        actor = gateway.parent().parent()
        assert "ReplicaActor" in " ".join(actor.cmdline())
        actor.send_signal(signal.SIGKILL)
        await cluster.until(lambda found: len(found) == 2 and lost.name not in [one.name for one in found])
        await asyncio.to_thread(gateway.wait, WAIT_S)
    assert work.cut == []


async def test_limits_and_files_survive_their_coordinator(open_cluster):
    """Two gateways share a watermark, places of a key, voices and lexicons, also after the coordinator was killed."""
    import ray

    from realtime.cluster.actors import COORDINATOR

    limits = {"limits.max_active_responses_per_key": 3}
    async with open_cluster(gateway=two_gateways(settings=limits)) as cluster:
        replicas = await cluster.replicas()
        keys = {cluster.program(one).environ()[WATERMARK_KEY] for one in replicas}
        assert len(keys) == 1
        gateways = [one.url.replace("ws", "http").removesuffix("/v1/speech") for one in replicas]
        async with httpx.AsyncClient(trust_env=False, verify=NO_CERTIFICATES, timeout=WAIT_S) as http:
            form = {"name": "ann", "consent": "c", "speaker_embedding": str([1.0] * EMBEDDING_SIZE)}
            added = await http.post(f"{gateways[0]}/v1/audio/voices", files={k: (None, v) for k, v in form.items()})
            assert added.status_code == 200
            assert (await http.put(f"{gateways[1]}/v1/lexicons/names", json=LEXICON)).status_code == 200
            assert (await http.get(f"{gateways[0]}/v1/lexicons/names")).status_code == 200
            shown = f"{gateways[1]}/v1/audio/voices/ann"
            async with speakers(*[one.url for one in replicas]) as (one, other):
                assert await other.fill(1) == 1
                assert await one.fill(2) == 2
                ray.kill(ray.get_actor(COORDINATOR, namespace=cluster.config.name), no_restart=False)
                assert (await http.get(shown)).status_code == 200
                assert await one.fill(1) == 0
                await other.cancel()
                assert await one.fill(1, max_refused=300) == 1
                assert (one.num_ended, other.num_ended) == (0, 1)
            assert (await http.delete(shown)).status_code == 200
            assert [(await http.get(f"{url}/v1/audio/voices/ann")).status_code for url in gateways] == [404] * 2
            assert (await http.delete(f"{gateways[0]}/v1/lexicons/names")).status_code == 200
            assert [(await http.get(f"{url}/v1/lexicons/names")).status_code for url in gateways] == [404] * 2


async def test_replica_that_cannot_start_is_reported(ray_here, free_port):
    from realtime.cluster import deploy

    config = ClusterConfig(name="test-broken", door=DoorSettings(port=free_port))
    programs = PROGRAMS | {"engine": (sys.executable, "-c", "raise SystemExit(3)")}
    try:
        await asyncio.to_thread(deploy.up, config, programs)
        async with asyncio.timeout(READY_S):
            while "its program exited" not in str((await status_of(config)).errors.get("engine")):
                await asyncio.sleep(0.2)
        with pytest.raises(deploy.ClusterError, match=r"not ready after 0 s: engine-.* exited"):
            await asyncio.to_thread(deploy.wait_until_ready, config.name, 0)
    finally:
        await asyncio.to_thread(deploy.down, config.name, READY_S)


async def status_of(config: ClusterConfig):
    from realtime.cluster import deploy

    try:
        return await asyncio.to_thread(deploy.status, config.name)
    except deploy.ClusterError:
        return deploy.ClusterStatus()
