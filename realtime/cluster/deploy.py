"""What ``voicewire cluster up | status | down | leave`` do: connect to Ray, and start, ask and stop the controller."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec
import ray
from ray.exceptions import RayError

from realtime.cluster.actors import (
    CALL_TIMEOUT_S,
    CONTROLLER,
    COORDINATOR,
    HEAD_NODE,
    ClusterStatus,
    Controller,
    replica_names,
)
from realtime.cluster.config import ClusterConfig
from realtime.cluster.leaving_nodes import LeaveAnswer

POLL_S = 0.5
NAME_TIMEOUT_S = 30.0
# Time for Ray to restart the controller, on busy cores.
RESTART_TIMEOUT_S = 60.0


class ClusterError(OSError):
    """Raised if Ray or the cluster cannot be reached, or does not become ready."""


def connect(namespace: str) -> None:
    """Connect to the Ray of this machine, or of ``RAY_ADDRESS``. Raises ``ClusterError``."""
    try:
        address = os.environ.get("RAY_ADDRESS", "auto")
        ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level="warning")
    except (ConnectionError, RuntimeError) as error:
        raise ClusterError(f"no Ray within reach ({error}); start one with `ray start --head`") from None


def up(config: ClusterConfig, programs: Mapping[str, Sequence[str]] | None = None) -> None:
    """Start the cluster, or change a running one to ``config``: what the change concerns is replaced in turn.

    Raises ``ClusterError`` for a change that cannot be made in turn.
    """
    if (former := find_controller(config.name)) is not None:
        check_change(msgspec.json.decode(call(former.config), type=ClusterConfig), config)
        ray.kill(former)  # the replicas go on, and the next controller adopts them
        wait_until(lambda: find_controller(config.name) is None, NAME_TIMEOUT_S, "the former controller did not end")
    ray.remote(Controller).options(
        name=CONTROLLER,
        namespace=config.name,
        lifetime="detached",
        max_restarts=-1,
        max_concurrency=4,
        num_cpus=0,
        resources=HEAD_NODE,
    ).remote(config.name, msgspec.json.encode(config), msgspec.json.encode(programs or {}))


def status(name: str) -> ClusterStatus:
    """Return the cluster's status. Raises ``ClusterError`` if there is none."""
    if (controller := find_controller(name)) is None:
        raise ClusterError(f"no cluster {name!r} runs here")
    return msgspec.json.decode(call(controller.status), type=ClusterStatus)


def call(method: Any, *arguments: bytes) -> bytes:
    """Call a method of the controller, again while Ray restarts it. Raises ``ClusterError``."""
    end_s = time.monotonic() + RESTART_TIMEOUT_S
    while True:
        try:
            return cast(bytes, ray.get(method.remote(*arguments), timeout=CALL_TIMEOUT_S))
        except (RayError, TimeoutError):
            if time.monotonic() > end_s:
                raise ClusterError("the cluster's controller does not answer") from None
        time.sleep(POLL_S)


def check_change(former: ClusterConfig, config: ClusterConfig) -> None:
    """Refuse other voices, and engines that would speak otherwise: a gateway accepts none that differs."""
    changes = {
        "model": (former.model, config.model),
        "engine.settings": (former.engine.settings, config.engine.settings),
        "voices_folder": (former.voices_folder, config.voices_folder),
    }
    for name, (before, after) in changes.items():
        if before != after:
            raise ClusterError(
                f"{name} was {before!r} and cannot change while the cluster runs: "
                "start a second cluster under another name, or run `cluster down` first"
            )


def down(name: str, timeout_s: float) -> None:
    """Drain and end every replica. Raises ``ClusterError`` if one still runs after ``timeout_s``."""
    if (controller := find_controller(name)) is None:
        raise ClusterError(f"no cluster {name!r} runs here")
    call(controller.stop)
    wait_until(lambda: not replica_names(name), timeout_s, "replicas still drain")
    ray.kill(controller)
    if (coordinator := find_actor(COORDINATOR, name)) is not None:
        ray.kill(coordinator)


def leave(name: str, timeout_s: float) -> None:
    """Replace the replicas of this machine by others elsewhere.

    Raises ``ClusterError`` if one still runs after ``timeout_s``, and where there is no other machine.
    """
    if os.environ.get("RAY_ADDRESS", "").startswith("ray://"):
        raise ClusterError("`cluster leave` cannot use a RAY_ADDRESS with ray://: the client's node is another machine")
    if (controller := find_controller(name)) is None:
        raise ClusterError(f"no cluster {name!r} runs here")
    node = msgspec.json.encode(ray.get_runtime_context().get_node_id())
    wait_until(has_left(lambda: call(controller.leave, node)), timeout_s, "replicas of this machine still drain")


def has_left(ask: Callable[[], bytes]) -> Callable[[], bool]:
    """Return a condition that asks the controller each time: a new one knows no leaving nodes.

    It is met by two answers in a row without a replica. At the first one a replica may be just starting.
    """
    num_empty = 0

    def is_met() -> bool:
        nonlocal num_empty
        answer = msgspec.json.decode(ask(), type=LeaveAnswer)
        if answer.error:
            raise ClusterError(answer.error)
        num_empty = num_empty + 1 if answer.num_running == 0 else 0
        return num_empty == 2

    return is_met


def wait_until_ready(name: str, timeout_s: float) -> ClusterStatus:
    """Wait for all wanted replicas. Raises ``ClusterError``."""
    end_s = time.monotonic() + timeout_s
    while True:
        error = "it does not answer"
        try:
            found = status(name)
            error = "; ".join(found.errors.values()) or "its replicas are still starting"
            if found.is_ready:
                return found
        except ClusterError:
            pass
        if time.monotonic() > end_s:
            raise ClusterError(f"the cluster is not ready after {timeout_s:.0f} s: {error}")
        time.sleep(POLL_S)


def find_controller(name: str) -> Any | None:
    return find_actor(CONTROLLER, name)


def find_actor(actor: str, name: str) -> Any | None:
    try:
        return ray.get_actor(actor, namespace=name)
    except ValueError:
        return None


def wait_until(condition: Callable[[], bool], timeout_s: float, failure: str) -> None:
    end_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end_s:
            raise ClusterError(failure)
        time.sleep(POLL_S)
