"""Leases of limits: their sum never exceeds the limit, however late and in whatever order they are applied."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from realtime.cluster.limit_leases import FORGET_S, LEASE_S, LimitLeases, Usage

LIMIT = "responses of ann"


class LeasedGateway:
    """A holder that applies the leases it was given, one after another, and fills its places."""

    def __init__(self, name: str, limit: int) -> None:
        self.name, self.limit = name, limit
        self.used, self.places, self.applied, self.refused = 0, 0, 0, False
        self.received = []

    def renew(self, leases: LimitLeases, now_s: float) -> None:
        usage = Usage(self.limit, self.used, self.places, self.refused)
        self.refused = False
        self.received.append(leases.renew(self.name, self.applied, {LIMIT: usage}, now_s))

    def apply(self) -> None:
        if self.received:
            lease = self.received.pop(0)
            self.applied, self.places = lease.version, lease.places[LIMIT]

    def begin(self) -> None:
        if self.used < self.places:
            self.used += 1
        else:
            self.refused = True

    def end(self) -> None:
        self.used = max(0, self.used - 1)


def settled(leases: LimitLeases, gateways: list[LeasedGateway], now_s: float, rounds: int = 8) -> None:
    for _ in range(rounds):
        for gateway in gateways:
            gateway.renew(leases, now_s)
            gateway.apply()


STEPS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["renew", "apply", "begin", "end"])), max_size=200)


@given(st.integers(0, 9), STEPS)
def test_leases_never_exceed_the_limit(limit, steps):
    leases = LimitLeases(0)
    gateways = [LeasedGateway(name, limit) for name in "abcd"]
    for number, action in steps:
        gateway = gateways[number]
        gateway.renew(leases, LEASE_S) if action == "renew" else getattr(gateway, action)()
        assert sum(max(one.used, one.places) for one in gateways) <= limit


@given(st.integers(4, 40), st.lists(st.integers(0, 9), min_size=1, max_size=4))
def test_leases_reach_every_place_of_the_limit(limit, demands):
    """Whoever is refused gets what the others do not use."""
    leases = LimitLeases(0)
    gateways = [LeasedGateway(str(number), limit) for number in range(len(demands))]
    for number in range(80):
        settled(leases, gateways, LEASE_S + number / 4, 1)
        for gateway, demand in zip(gateways, demands, strict=True):
            if gateway.used < demand:
                gateway.begin()
    assert sum(gateway.used for gateway in gateways) == min(limit, sum(demands))


def test_leases_of_a_silent_holder_go_to_others_after_they_passed():
    leases = LimitLeases(0)
    first, second = LeasedGateway("a", 10), LeasedGateway("b", 10)
    settled(leases, [first, second], LEASE_S)
    assert (first.places, second.places) == (5, 5)
    settled(leases, [second], LEASE_S + FORGET_S - 1)
    assert second.places == 5
    settled(leases, [second], LEASE_S + FORGET_S + 1)
    assert second.places == 10


def test_leases_of_a_new_coordinator_wait_for_those_of_the_former():
    leases = LimitLeases(100 + LEASE_S, first_version=1_000)
    gateway = LeasedGateway("a", 10)
    gateway.places, gateway.applied = 4, 7
    settled(leases, [gateway], 100 + LEASE_S - 1)
    assert gateway.places == 4
    settled(leases, [gateway], 100 + LEASE_S)
    assert gateway.places == 10


def test_last_refused_gets_the_only_unused_place():
    """An earlier refusal of a holder that has places by now does not count more."""
    leases = LimitLeases(0)
    first, last = gateways = [LeasedGateway(name, 3) for name in "ab"]
    for number, gateway in enumerate(gateways):
        gateway.refused = True
        settled(leases, gateways, LEASE_S + number)
        gateway.begin()
    last.begin()
    last.begin()
    settled(leases, gateways, LEASE_S + 2)
    assert (first.places, last.places) == (1, 2)
