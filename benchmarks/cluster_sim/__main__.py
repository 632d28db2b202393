"""Simulate a day of a cluster: places, cost, what listeners miss, and which part is full first.

    python -m benchmarks.cluster_sim [--listeners 1000000] [--device h200] [--price 3.5] [--calm]
    [--set load.talk_share=0.5] [--set plant.zones=4] [--set failures.zone_hour=null]

The replies of one engine are a number (``cluster.py`` says what that makes inexact). The
last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, replace
from typing import Any

from benchmarks.cluster_sim.costs import STEP_MS, Costs
from benchmarks.cluster_sim.scenario import DAY_S, HOUR_S, NO_FAILURES, Failures, Load, Plant
from benchmarks.cluster_sim.simulation import Simulation

# Dollars for an hour of a machine with one GPU and 16 cores.
PRICE = 3.5


def parse_setting(text: str) -> tuple[str, str, Any]:
    """``load.talk_share=0.5`` as section, name and value."""
    name, _, value = text.partition("=")
    section, _, field = name.partition(".")
    return section, field, json.loads(value)


def summarize(simulation: Simulation, price: float) -> dict[str, Any]:
    fates, limits, fleet = simulation.fates, simulation.limits, simulation.fleet
    speech_h, engine_h = fates.live_seconds / HOUR_S, simulation.engine_s / HOUR_S
    return {
        "places_per_engine": simulation.costs.places,
        "device_places": simulation.costs.device_places,
        "speech_hours": round(speech_h),
        "engine_hours": round(engine_h),
        "utilization": round(speech_h / (engine_h * simulation.costs.places), 3),
        "cost_per_speech_hour": round(engine_h * price / speech_h, 5),
        "fates": {name: round(value, 2) for name, value in asdict(fates).items()} | {"open": simulation.num_open},
        "least_ready_share_in_upgrade": round(fleet.least_upgrade_share, 3),
        "upgrade_ended_hour": None if fleet.upgraded_s is None else round(fleet.upgraded_s / HOUR_S, 2),
        "peak_shares": {name: round(peak.share, 3) for name, peak in limits.peaks.items()},
        "peak_hours": {name: round(peak.at_s / HOUR_S, 2) for name, peak in limits.peaks.items()},
        "max_listeners": {name: limits.max_listeners(name) for name in limits.peaks},
        "first_limit": limits.first,
    }


def print_table(report: dict[str, Any]) -> None:
    for name, value in report.items():
        if not isinstance(value, dict):
            print(f"{name:<30} {value}")
    for name, value in report["fates"].items():
        print(f"{name:<30} {value:,}")
    print(f"\n{'part':<14} {'peak share':>10} {'hour':>6} {'full at listeners':>18}")
    for name, share in sorted(report["peak_shares"].items(), key=lambda entry: -entry[1]):
        full = report["max_listeners"][name]
        print(f"{name:<14} {share:>10.3f} {report['peak_hours'][name]:>6} {full if full else 'grows with engines':>18}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--listeners", type=int, default=Load.listeners)
    parser.add_argument("--device", choices=sorted(STEP_MS), default="h200")
    parser.add_argument("--price", type=float, default=PRICE, help="dollars for an hour of a machine with one GPU")
    parser.add_argument("--calm", action="store_true", help="nothing fails and nothing is upgraded")
    parser.add_argument("--hours", type=float, default=DAY_S / HOUR_S)
    parser.add_argument("--slot", type=float, default=1.0, help="seconds of a slot")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", type=parse_setting, action="append", default=[], metavar="SECTION.NAME=JSON")
    args = parser.parse_args()
    parts: dict[str, Any] = {"load": Load(args.listeners), "plant": Plant(), "costs": Costs.of_device(args.device)}
    parts["failures"] = NO_FAILURES if args.calm else Failures()
    for section, name, value in args.set:
        parts[section] = replace(parts[section], **{name: value})
    begun_s = time.monotonic()
    simulation = Simulation(**parts, slot_s=args.slot, seed=args.seed).run(args.hours * HOUR_S)
    report = summarize(simulation, args.price) | {"run_s": round(time.monotonic() - begun_s, 1)}
    print_table(report)
    print(json.dumps({"benchmark": "cluster_sim", "listeners": args.listeners, "device": args.device} | report))


if __name__ == "__main__":
    main()
