"""Nodes that are about to end: what still runs there, which answers end ``cluster leave``, when they are forgotten."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec
import pytest

from realtime.cluster.config import ClusterConfig
from realtime.cluster.leaving_nodes import MAX_LEAVE_S, LeaveAnswer, LeavingNodes
from realtime.cluster.scaling import ReplicaStatus

if TYPE_CHECKING:
    from realtime.cluster.actors import Controller, Member

NODE = msgspec.json.encode("here")


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> Controller:
    """One that has adopted, between two steps, in a cluster of two nodes."""
    from realtime.cluster import actors

    monkeypatch.setattr(actors.Controller, "_run", lambda self: None)
    monkeypatch.setattr(actors, "alive_nodes", lambda: {"here", "there"})
    controller = actors.Controller("c", msgspec.json.encode(ClusterConfig()), b"{}")
    controller._has_adopted = True
    return controller


def add_member(controller: Controller, kind: str, node: str = "", avoided: Iterable[str] = ()) -> Member:
    from realtime.cluster.actors import Member

    name = f"{kind}-{len(controller._members)}"
    member = Member(None, ReplicaStatus(name=name, kind=kind, generation="g", node=node), tuple(avoided))
    member.has_reported = node != ""
    controller._members[name] = member
    return member


def answer_of(controller: Controller) -> LeaveAnswer:
    return msgspec.json.decode(controller.leave(NODE), type=LeaveAnswer)


@pytest.mark.cluster("ray")
def test_replicas_that_may_be_there_count(controller: Controller) -> None:
    for kind, node in (("engine", "here"), ("gateway", "there"), ("door", "here")):
        add_member(controller, kind, node)
    placed = add_member(controller, "gateway")
    add_member(controller, "gateway", avoided=["here"])
    assert answer_of(controller).num_running == 2
    placed.has_reported, placed.status = True, msgspec.structs.replace(placed.status, node="there")
    assert answer_of(controller).num_running == 1


@pytest.mark.cluster("ray")
def test_replica_that_waits_for_a_place_is_replaced(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[object] = []
    monkeypatch.setattr("ray.kill", killed.append)
    waiting = add_member(controller, "engine")
    waiting.handle = "waiting"
    stays = [add_member(controller, "engine", "here"), add_member(controller, "gateway", avoided=["here"])]
    stays.append(add_member(controller, "door"))
    assert answer_of(controller).num_running == 2
    controller._drop_unreported()
    assert answer_of(controller).num_running == 1
    assert (killed, list(controller._members.values())) == (["waiting"], stays)
    assert controller._errors == controller._pauses == {}


@pytest.mark.cluster("ray")
def test_new_controller_does_not_know_what_runs(controller: Controller) -> None:
    controller._has_adopted = False
    assert answer_of(controller) == LeaveAnswer(num_running=None)


@pytest.mark.cluster("ray")
def test_the_only_machine_cannot_leave(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("realtime.cluster.actors.alive_nodes", lambda: {"here"})
    assert "no other machine" in answer_of(controller).error
    assert "here" not in controller._leaving


@pytest.mark.cluster("ray")
def test_two_empty_answers_in_a_row_end_it() -> None:
    from realtime.cluster.deploy import ClusterError, has_left

    answers = iter([0, None, 1, 0, 2, 0, 0])
    is_met = has_left(lambda: msgspec.json.encode(LeaveAnswer(num_running=next(answers))))
    assert [is_met() for _ in range(7)] == [False] * 6 + [True]
    with pytest.raises(ClusterError, match="alone"):
        has_left(lambda: msgspec.json.encode(LeaveAnswer(error="alone")))()


@pytest.mark.cluster("ray")
def test_a_client_on_another_machine_cannot_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    from realtime.cluster import deploy

    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    with pytest.raises(deploy.ClusterError, match="ray://"):
        deploy.leave("c", 1.0)


def test_nodes_are_forgotten_when_they_end_or_stay() -> None:
    nodes = LeavingNodes(retain_s=100)
    for node, named_s in (("stays", 0), ("ended", 0), ("leaves", 0), ("leaves", 90)):
        nodes.add(node, named_s)
    nodes.evict({"stays", "leaves"}, 100)
    assert list(nodes) == ["leaves", "stays"]
    nodes.evict({"stays", "leaves"}, 101)
    assert list(nodes) == ["leaves"]
    assert "stays" not in nodes


def test_time_for_successors_begins_when_a_node_is_named_first() -> None:
    nodes = LeavingNodes(retain_s=100)
    nodes.add("n", 0)
    nodes.add("n", 50)
    assert [nodes.is_overdue("n", MAX_LEAVE_S), nodes.is_overdue("n", MAX_LEAVE_S + 1)] == [False, True]
