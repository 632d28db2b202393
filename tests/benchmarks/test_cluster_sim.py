"""The simulated cluster: what is conserved, and agreement with theory, the engine's admission and single replies."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.cluster_sim.cluster import spread
from benchmarks.cluster_sim.costs import Costs, count_sustained
from benchmarks.cluster_sim.replies import ReplySimulation
from benchmarks.cluster_sim.scenario import HOUR_S, NO_FAILURES, Failures, Load, Plant
from benchmarks.cluster_sim.simulation import Simulation

ROOT = Path(__file__).parents[2]
# Twenty engines of forty places, that compute takeovers slowly.
COSTS = replace(Costs.of_device("h200"), max_places=40, position_s=0.002)
FIXED = Plant(max_engines=20, zones=1, target=0.01)
REPLY_S = 8.0


def load_of(erlangs: float) -> Load:
    return Load(listeners=round(erlangs / 0.5), night_share=1.0, reply_s=REPLY_S)


def simulate(erlangs: float, seconds: float, plant: Plant = FIXED, failures: Failures = NO_FAILURES) -> Simulation:
    return Simulation(load_of(erlangs), plant, failures, COSTS, slot_s=0.5, seed=1).run(seconds)


def erlang_b(erlangs: float, places: int) -> float:
    """Share of arrivals that a system of ``places`` without a queue refuses."""
    share = 1.0
    for count in range(1, places + 1):
        share = erlangs * share / (count + erlangs * share)
    return share


STORMY = Failures(engine_mtbf_h=5, gateway_mtbf_h=5, zone_hour=0.5, storm_hour=0.3, storm_share=0.5, upgrade_hour=0.2)


@pytest.mark.parametrize("doors", [0.02, 4], ids=["slow door", "quick door"])
def test_every_reply_ends_in_exactly_one_way(doors):
    plant = Plant(max_engines=60, zones=3, doors=doors, door_rate=500, slots=60, machine_start_s=30)
    simulation = simulate(800, HOUR_S, plant, STORMY)
    fates = simulation.fates
    assert fates.arrived == fates.completed + fates.refused + fates.cut + simulation.num_open
    assert min(fates.completed, fates.resumed, fates.taken_over) > 0
    assert (fates.cut > 0, fates.refused > 0) == (doors < 1, doors > 1)
    assert simulation.cluster.used.min() >= 0


def test_live_replies_obey_littles_law():
    simulation = simulate(500, 1_200)
    fates = simulation.fates
    assert fates.refused == 0
    assert fates.live_seconds == pytest.approx(fates.arrived * REPLY_S, rel=0.03)
    assert fates.live_seconds / 1_200 == pytest.approx(500, rel=0.05)


# Places are checked once in a slot: short slots where arrivals are just above the places.
@pytest.mark.parametrize(("erlangs", "slot_s"), [(850, 0.1), (1000, 0.5), (1600, 0.5)])
def test_refused_share_is_that_of_erlang(erlangs, slot_s):
    simulation = Simulation(load_of(erlangs), FIXED, NO_FAILURES, COSTS, slot_s=slot_s, seed=1).run(600)
    found = simulation.fates.refused / simulation.fates.arrived
    assert found == pytest.approx(erlang_b(erlangs, 20 * 40), rel=0.1)


def test_counts_agree_with_single_replies():
    costs = replace(COSTS, max_places=200, position_s=0.0005)
    plant, detection_s = replace(FIXED, max_engines=6), 0.1
    kills = [(300.0 * number, number) for number in (1, 2)]
    single = ReplySimulation(costs, 6, 700 / REPLY_S, REPLY_S, plant.lead_s, detection_s, kills, seed=2).run(900)
    counted = Simulation(load_of(700), plant, NO_FAILURES, costs, slot_s=0.25, seed=2)
    for moment_s, engine in kills:
        counted.at(moment_s, lambda engine=engine: counted.kill(np.array([engine]), detection_s))
    # Nothing replaces a dead engine there.
    counted.fleet.scale = lambda now_s: None  # type: ignore[method-assign]
    counted.run(900)
    assert single.arrived == single.completed + single.refused + single.num_open
    assert counted.fates.live_seconds == pytest.approx(single.live_seconds, rel=0.03)
    assert counted.fates.taken_over == pytest.approx(single.taken_over, rel=0.15)
    assert single.silent_takeover > 100
    assert counted.fates.silent_takeover == pytest.approx(single.silent_takeover, rel=0.2)


# docs/experiments/gpu-capacity.md, "Rows per step, row order and admission, simulated": the engine's own code ran.
@pytest.mark.parametrize(("rows", "admitted"), [(640, 1838), (768, 1888), (896, 1926), (1024, 1955)])
def test_places_are_those_of_the_load_simulation(rows, admitted):
    from benchmarks.load_simulation import DECODE_MS, FRAME_MS, seconds_of

    steps = {rows: seconds_of(FRAME_MS, rows) + seconds_of(DECODE_MS, rows)}
    assert count_sustained(steps, 0.95) == pytest.approx(admitted, abs=1)


def test_spread_fills_the_emptiest_engines_first():
    rng = np.random.default_rng(0)
    for _ in range(200):
        free = rng.integers(0, 12, size=rng.integers(1, 9))
        num = int(rng.integers(0, free.sum() + 5))
        placed, left = spread(num, free), free.copy()
        for _ in range(min(num, int(free.sum()))):
            left[int(np.argmax(left))] -= 1
        assert sorted(free - placed) == sorted(left)


def test_upgrade_keeps_four_fifths_of_the_engines():
    failures = replace(NO_FAILURES, upgrade_hour=0.1)
    simulation = simulate(800, HOUR_S, Plant(max_engines=100, zones=3), failures)
    assert simulation.fleet.upgraded_s is not None
    assert simulation.fleet.least_upgrade_share >= 0.8
    assert simulation.fates.cut == simulation.fates.refused == 0


def test_command_reports_a_table_and_json():
    command = [sys.executable, "-m", "benchmarks.cluster_sim", "--listeners", "20000", "--hours", "0.05"]
    done = subprocess.run([*command, "--set", "plant.zones=4"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["first_limit"] in report["peak_shares"]
    assert math.isfinite(report["cost_per_speech_hour"])
