"""Laws of the planner: it reaches what is wanted, and capacity never falls on the way."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from realtime.cluster.scaling import Autoscaler, ReplicaStatus, plan

STATES = st.sampled_from(["starting", "ready", "draining"])
REPLICAS = st.lists(st.tuples(STATES, st.sampled_from(["old", "new"]), st.integers(0, 9)), max_size=12)
CHOICES = st.randoms(use_true_random=False)


def replica(number: int, state: str, generation: str, num_connections: int = 0) -> ReplicaStatus:
    return ReplicaStatus(
        name=f"r{number}", kind="gateway", generation=generation, state=state, num_connections=num_connections
    )


def num_ready(replicas: list[ReplicaStatus]) -> int:
    return sum(one.state == "ready" for one in replicas)


def carry_out(replicas: list[ReplicaStatus], wanted: int, number: int) -> list[ReplicaStatus]:
    steps = plan(replicas, wanted, "new")
    moved = [msgspec.structs.replace(one, state="draining") if one.name in steps.to_drain else one for one in replicas]
    return moved + [replica(number + more, "starting", "new") for more in range(steps.num_to_start)]


@given(REPLICAS, st.integers(0, 5), CHOICES)
def test_plan_reaches_the_wanted_number_and_keeps_capacity(found, wanted, choices):
    replicas = [replica(number, *one) for number, one in enumerate(found)]
    for step in range(100):
        before = num_ready(replicas)
        replicas = carry_out(replicas, wanted, 100 * (step + 1))
        assert num_ready(replicas) >= min(before, wanted)
        staying = [one for one in replicas if one.state != "draining"]
        assert len(staying) <= max(wanted + 1, len(found))
        changed = [choices.choice(replicas)] if replicas else []
        replicas = [progress(one) if one in changed or step > 50 else one for one in replicas]
        replicas = [one for one in replicas if one.state != "gone"]
    assert [(one.state, one.generation) for one in replicas] == [("ready", "new")] * wanted


def progress(one: ReplicaStatus) -> ReplicaStatus:
    state = {"starting": "ready", "draining": "gone"}.get(one.state, one.state)
    return msgspec.structs.replace(one, state=state)


def test_plan_of_an_upgrade_starts_one_more():
    old = [replica(0, "ready", "old", 5), replica(1, "ready", "old", 3)]
    assert plan(old, 2, "new") == plan([], 1, "new")
    ready = [*old, replica(2, "ready", "new")]
    assert plan(ready, 2, "new").to_drain == ("r1",)


def test_autoscaler_grows_at_once_and_shrinks_after_the_delay():
    scaler = Autoscaler(1, 4, 0.7, 60)
    assert scaler.update(0, 0, 0) == 1
    assert scaler.update(7.0, 10, 1) == 1
    assert scaler.update(7.1, 10, 2) == 2
    assert scaler.update(100, 10, 3) == 4
    assert [scaler.update(0, 10, now_s) for now_s in (4, 63, 64, 123, 124, 184, 999)] == [4, 4, 3, 3, 2, 1, 1]
    assert scaler.update(0, 10, 1000) == 1
    assert Autoscaler(2, 4, 0.7, 60).update(0, 10, 0) == 2


def test_autoscaler_brief_rise_restarts_the_delay():
    scaler = Autoscaler(1, 4, 0.7, 60)
    scaler.adopt(2)
    assert scaler.update(0, 10, 0) == 2
    assert scaler.update(14, 10, 59) == 2
    assert scaler.update(0, 10, 61) == 2
    assert scaler.update(0, 10, 121) == 1
