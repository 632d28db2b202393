from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from realtime.concurrency_limit import ConcurrencyLimit
from realtime.errors import RequestRefused
from realtime.shared_counters import SharedUsageCounters
from sessions.admission import CONNECTIONS, UPLOADS, LocalUsageCounters, ResponseLimiter, counter_names, key_counter
from sessions.config import RegistryLimits
from sessions.errors import LimitExceeded

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
        ResponseLimiter(RegistryLimits(max_active_responses=3, max_active_responses_per_key=2), tally)
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
