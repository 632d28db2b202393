"""The cluster on Ray: an actor for each replica, which Ray places, and one controller, which starts and drains them.

Plain actors, with JSON as their arguments. No audio passes through Ray. All state lives in the replicas, so a new
controller adopts those that it finds.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import ray
from msgspec import Struct
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, RayActorError, RayError, RayTaskError

from realtime.cluster.config import ClusterConfig
from realtime.cluster.coordinator import Coordinator
from realtime.cluster.door import DoorReplica
from realtime.cluster.leaving_nodes import LeaveAnswer, LeavingNodes
from realtime.cluster.replica import Members, ProcessReplica, ReplicaSpec
from realtime.cluster.scaling import Autoscaler, Kind, ReplicaStatus, plan
from realtime.version import VERSION
from sessions.owned_files import voices_folder

log = logging.getLogger("voicewire.cluster")

CONTROLLER = "controller"
COORDINATOR = "coordinator"
KINDS: tuple[Kind, ...] = ("engine", "gateway", "door")
INTERVAL_S = 0.5
# Time without a report after which a replica counts as lost.
SILENT_S = 15.0
CALL_TIMEOUT_S = 10.0
MAX_PAUSE_S = 30.0
# In place of the generation of replicas whose node is about to end.
LEAVING = "leaving"
# Time after its last call for which a node beyond its drain still counts as about to end.
LEAVE_MARGIN_S = 120.0
NODE_LABEL = "ray.io/node-id"
# Ray's own resource of the head node; the door has one address.
HEAD_NODE = {"node:__internal_head__": 0.001}


class ClusterStatus(Struct, frozen=True, kw_only=True):
    replicas: tuple[ReplicaStatus, ...] = ()
    wanted: dict[str, int] = {}
    generations: dict[str, str] = {}
    # Last failure by kind, until a replica of it is ready.
    errors: dict[str, str] = {}

    @property
    def is_ready(self) -> bool:
        """Whether all wanted replicas are ready and those of earlier files have gone."""
        return bool(self.wanted) and all(
            [one.generation for one in self.replicas if one.kind == kind and one.state == "ready"]
            == [self.generations[kind]] * num
            and not any(one.kind == kind and one.generation != self.generations[kind] for one in self.replicas)
            for kind, num in self.wanted.items()
        )


class CoordinatorActor:
    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._coordinator: Coordinator | None = None

    async def handle(self, message: bytes) -> bytes:
        if self._coordinator is None:  # on the loop that it stays on
            is_restarted = ray.get_runtime_context().was_current_actor_reconstructed
            self._coordinator = Coordinator(voices_folder(self._folder), is_restarted)
        return await self._coordinator.handle(message)


class CoordinatorCaller:
    """Calls the coordinator of a cluster. Threads may share it."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._actor: Any = None

    def __call__(self, message: bytes, timeout_s: float) -> bytes:
        """Return the answer. Raises ``OSError``."""
        try:
            if self._actor is None:
                self._actor = ray.get_actor(COORDINATOR, namespace=self._namespace)
            return cast(bytes, ray.get(self._actor.handle.remote(message), timeout=timeout_s))
        except (RayError, ValueError) as error:
            if isinstance(error, ActorDiedError):
                self._actor = None
            raise OSError(f"the coordinator does not answer: {type(error).__name__}") from None


class ReplicaActor:
    """One engine, gateway or door."""

    def __init__(self, spec: bytes, namespace: str) -> None:
        self._spec = msgspec.json.decode(spec, type=ReplicaSpec)
        kind = DoorReplica if self._spec.kind == "door" else ProcessReplica
        self._replica = kind(self._spec, ray.util.get_node_ip_address(), CoordinatorCaller(namespace))

    def report(self, members: bytes) -> bytes:
        known = msgspec.json.decode(members, type=Members | None)
        status = msgspec.structs.replace(self._replica.report(known), node=ray.get_runtime_context().get_node_id())
        return msgspec.json.encode(status)

    def drain(self) -> None:
        self._replica.drain()

    def kill(self) -> None:
        self._replica.kill()


class Member:
    """A replica as the controller knows it."""

    def __init__(self, handle: Any, status: ReplicaStatus, avoided: Sequence[str] = ()) -> None:
        """Ray places it on none of the ``avoided`` nodes."""
        self.handle = handle
        self.status = status
        self.has_reported = False
        self._avoided = avoided
        self.heard_s = time.monotonic()
        # A report that is under way.
        self.pending: Any = None

    @property
    def is_silent(self) -> bool:
        """One that Ray has not placed yet is not."""
        return self.has_reported and time.monotonic() - self.heard_s > SILENT_S

    def may_run_on(self, node: str) -> bool:
        """Return whether it runs on a node, or did not report yet and may be there."""
        return self.status.node == node if self.has_reported else node not in self._avoided


class Controller:
    """Keeps the replicas as the file wants them. Its thread is the only one that touches them."""

    def __init__(self, namespace: str, config: bytes, programs: bytes) -> None:
        self._namespace = namespace
        self._config = msgspec.json.decode(config, type=ClusterConfig)
        self._programs = msgspec.json.decode(programs, type=dict[str, tuple[str, ...]])
        self._generations: dict[str, str] = {kind: generation(self._config, self._programs, kind) for kind in KINDS}
        self._members: dict[str, Member] = {}
        self._wanted: dict[str, int] = {}
        self._errors: dict[str, str] = {}
        self._pauses: dict[str, tuple[float, float]] = {}
        self._is_stopping = False
        self._has_adopted = False
        self._leaving = LeavingNodes(self._config.drain_timeout_s + LEAVE_MARGIN_S)
        self._scalers = {
            "engine": self._autoscaler(self._config.engine.min_replicas, self._config.engine.max_replicas),
            "gateway": self._autoscaler(self._config.gateway.min_replicas, self._config.gateway.max_replicas),
        }
        threading.Thread(target=self._run, name="voicewire controller", daemon=True).start()

    def status(self) -> bytes:
        replicas = tuple(member.status for member in list(self._members.values()))
        return msgspec.json.encode(
            ClusterStatus(
                replicas=replicas, wanted=self._wanted, generations=self._generations, errors=dict(self._errors)
            )
        )

    def config(self) -> bytes:
        return msgspec.json.encode(self._config)

    def stop(self) -> None:
        """Drain every replica and start none."""
        self._is_stopping = True

    def leave(self, node: bytes) -> bytes:
        """Replace the replicas of a node but the door, and start none there."""
        name = msgspec.json.decode(node, type=str)
        if not alive_nodes() - {name}:
            return msgspec.json.encode(LeaveAnswer(error="no other machine runs: use `cluster down`"))
        self._leaving.add(name, time.monotonic())
        members = [member for member in list(self._members.values()) if member.status.kind != "door"]
        num_running = sum(member.may_run_on(name) for member in members)
        return msgspec.json.encode(LeaveAnswer(num_running=num_running if self._has_adopted else None))

    def _autoscaler(self, minimum: int, maximum: int) -> Autoscaler:
        return Autoscaler(minimum, maximum, self._config.target_utilization, self._config.scale_down_delay_s)

    def _run(self) -> None:
        self._adopt()
        self._has_adopted = True
        self._start_coordinator()
        while True:
            try:
                self._poll(self._known_members())
                self._wanted = self._count_wanted()
                if any(self._leaving):
                    self._leaving.evict(alive_nodes(), time.monotonic())
                    self._drop_unreported()
                for kind in KINDS:
                    self._step(kind)
            except Exception:  # the loop is all that keeps the cluster
                log.exception("a step of the cluster's controller failed")
            time.sleep(INTERVAL_S)

    def _start_coordinator(self) -> None:
        ray.remote(CoordinatorActor).options(
            name=COORDINATOR,
            namespace=self._namespace,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            num_cpus=0,
            resources=HEAD_NODE,
        ).remote(self._config.voices_folder)

    def _adopt(self) -> None:
        """Take over the replicas of an earlier controller. They keep what they know until all have reported."""
        for name in replica_names(self._namespace):
            kind, _, rest = name.partition("-")
            status = ReplicaStatus(name=name, kind=kind, generation=rest.partition("-")[0])  # type: ignore[arg-type]
            self._members[name] = Member(ray.get_actor(name, namespace=self._namespace), status)
        end_s = time.monotonic() + SILENT_S
        while not all(member.has_reported for member in self._members.values()):
            self._poll(None)
            if time.monotonic() > end_s:
                for name in [name for name, member in self._members.items() if not member.has_reported]:
                    self._lose(name, "it does not answer")
        for kind, scaler in self._scalers.items():
            scaler.adopt(len(self._of(kind)))

    def _of(self, kind: str) -> list[ReplicaStatus]:
        return [member.status for member in self._members.values() if member.status.kind == kind]

    def _poll(self, known: Members | None) -> None:
        """Exchange reports with the replicas; drop those that have ended."""
        members = msgspec.json.encode(known)
        for member in self._members.values():
            if member.pending is None:
                member.pending = member.handle.report.remote(members)
        pending = [member.pending for member in self._members.values()]
        if pending:
            ray.wait(pending, num_returns=len(pending), timeout=1.0)
        for name, member in list(self._members.items()):
            self._receive(name, member)

    def _known_members(self) -> Members:
        return Members(
            engines=tuple(one.url for one in self._of("engine") if one.state == "ready"),
            gateways=tuple(one for one in self._of("gateway") if one.state in ("ready", "draining")),
        )

    def _receive(self, name: str, member: Member) -> None:
        try:
            report = ray.get(member.pending, timeout=0)
        except GetTimeoutError:
            if member.is_silent:
                self._lose(name, "it does not answer")
            return
        except ActorUnavailableError:
            member.pending = None
            return
        except (RayActorError, RayTaskError) as error:
            self._lose(name, str(error).strip().splitlines()[-1])
            return
        member.pending, member.has_reported, member.heard_s = None, True, time.monotonic()
        was = member.status
        member.status = msgspec.json.decode(report, type=ReplicaStatus)
        if member.status.state == "ready":
            self._errors.pop(member.status.kind, None)
            self._pauses.pop(member.status.kind, None)
        if member.status.state == "gone":
            self._lose(name, "" if was.state == "draining" else "its program exited")

    def _lose(self, name: str, reason: str) -> None:
        member = self._members.pop(name)
        ray.kill(member.handle)  # its program drains, if it still runs
        log.info("replica ended", extra={"replica": name, "reason": reason})
        if not reason:
            return
        kind = member.status.kind
        self._errors[kind] = f"{name}: {reason}"
        if not member.has_reported or member.status.state == "starting":
            _, pause_s = self._pauses.get(kind, (0.0, 0.5))
            pause_s = min(2 * pause_s, MAX_PAUSE_S)
            self._pauses[kind] = (time.monotonic() + pause_s, pause_s)

    def _count_wanted(self) -> dict[str, int]:
        if self._is_stopping:  # engines speak until no gateway is left
            return {"engine": len(self._of("engine")) if self._of("gateway") else 0, "gateway": 0, "door": 0}
        now_s = time.monotonic()
        gateways = [one for one in self._of("gateway") if one.state == "ready"]
        num_engines = sum(one.state == "ready" for one in self._of("engine"))
        # Each gateway reports the sum over all engines.
        fullest = max(gateways, key=lambda one: one.used_places, default=None)
        used, places = (fullest.used_places, fullest.places) if fullest else (0, 0)
        speaking = sum(one.num_active_responses for one in self._of("gateway"))
        wanted = {"door": 1, "engine": self._scalers["engine"].update(used, places / max(1, num_engines), now_s)}
        wanted["gateway"] = self._scalers["gateway"].update(speaking, self._config.gateway.places, now_s)
        return wanted

    def _step(self, kind: Kind) -> None:
        replicas = [self._mark_leaving(one) for one in self._of(kind)]
        steps = plan(replicas, self._wanted.get(kind, 0), self._generations[kind])
        overdue = [one.name for one in replicas if one.state != "draining" and self._is_overdue(one)]
        if to_drain := {*steps.to_drain, *overdue}:
            self._drain(sorted(to_drain))
        not_before_s, _ = self._pauses.get(kind, (0.0, 0.0))
        has_engine = any(one.state == "ready" for one in self._of("engine"))
        if time.monotonic() >= not_before_s and (kind != "gateway" or has_engine):
            for _ in range(steps.num_to_start):
                self._start(kind)

    def _drain(self, names: Sequence[str]) -> None:
        """Drain replicas. Doors and gateways know it before them, so that nothing new is sent there."""
        for name in names:
            member = self._members[name]
            member.status = msgspec.structs.replace(member.status, state="draining")
        members = msgspec.json.encode(self._known_members())
        others = [one for one in self._members.values() if one.status.kind != "engine" and one.has_reported]
        self._call(one.handle.report.remote(members) for one in others)
        self._call(self._members[name].handle.drain.remote() for name in names)

    def _call(self, calls: Iterable[Any]) -> None:
        """Wait for calls; one that fails shows in the next report."""
        for call in list(calls):
            try:
                ray.get(call, timeout=CALL_TIMEOUT_S)
            except RayError as error:
                log.warning("a call to a replica failed", extra={"error": type(error).__name__})

    def _start(self, kind: Kind) -> None:
        name = f"{kind}-{self._generations[kind]}-{secrets.token_hex(3)}"
        avoided = () if kind == "door" else tuple(self._leaving)
        spec = ReplicaSpec(
            name=name,
            kind=kind,
            generation=self._generations[kind],
            config=self._config,
            programs=self._programs,
        )
        actor = ray.remote(ReplicaActor).options(
            name=name,
            namespace=self._namespace,
            lifetime="detached",
            max_concurrency=4,
            **resources(self._config, kind),
            **avoid(avoided),
        )
        self._members[name] = Member(
            actor.remote(msgspec.json.encode(spec), self._namespace),
            ReplicaStatus(name=name, kind=kind, generation=spec.generation),
            avoided,
        )

    def _mark_leaving(self, one: ReplicaStatus) -> ReplicaStatus:
        """Count a replica but the door as outdated on a node that is about to end, so that it is replaced in turn."""
        is_leaving = one.node in self._leaving and one.kind != "door"
        return msgspec.structs.replace(one, generation=LEAVING) if is_leaving else one

    def _drop_unreported(self) -> None:
        """End replicas that Ray may still place on a node that is about to end; others start elsewhere."""
        for name, member in list(self._members.items()):
            may_be_there = not member.has_reported and any(map(member.may_run_on, self._leaving))
            if may_be_there and member.status.kind != "door":
                self._lose(name, "")

    def _is_overdue(self, one: ReplicaStatus) -> bool:
        """Return whether a leaving replica waits for its successor no longer."""
        return one.generation == LEAVING and self._leaving.is_overdue(one.node, time.monotonic())


def alive_nodes() -> set[str]:
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


def avoid(nodes: Sequence[str]) -> dict[str, Any]:
    """Return options that place an actor on none of the nodes."""
    return {"label_selector": {NODE_LABEL: f"!in({','.join(nodes)})"}} if nodes else {}


def resources(config: ClusterConfig, kind: Kind) -> dict[str, Any]:
    match kind:
        case "engine":
            return {"num_cpus": config.engine.cpus, "num_gpus": config.engine.gpus}
        case "gateway":
            return {"num_cpus": config.gateway.cpus}
        case "door":
            return {"num_cpus": 0, "resources": HEAD_NODE}


def generation(config: ClusterConfig, programs: dict[str, tuple[str, ...]], kind: Kind) -> str:
    """Return a digest of what a replica is started with: one of another digest is replaced."""
    section = msgspec.to_builtins(getattr(config, kind))
    for name in ("min_replicas", "max_replicas", "places"):
        section.pop(name, None)
    common = [config.model, config.keys_file, config.token_secret_file, config.tls, config.drain_timeout_s]
    if kind == "door":
        common = common[1:4]
    everything = [VERSION, section, common, programs.get(kind), file_digest(config.keys_file)]
    return hashlib.sha256(msgspec.json.encode(everything)).hexdigest()[:8]


def file_digest(path: str | None) -> str:
    """Return a digest of a file's content; empty without one on this machine."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest() if path else ""
    except OSError:
        return ""


def replica_names(namespace: str) -> list[str]:
    named = ray.util.list_named_actors(all_namespaces=True)
    return [one["name"] for one in named if one["namespace"] == namespace and one["name"].partition("-")[0] in KINDS]
