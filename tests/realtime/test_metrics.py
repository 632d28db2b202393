from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.api import EngineStats
from realtime.metrics import COUNTERS, ENGINE_COUNTERS, GAUGES, HISTOGRAMS, PREFIX, ServerMetrics

STATS = EngineStats(
    num_waiting=1,
    num_running=5,
    num_parked=2,
    num_steps=10,
    blocks_free=3,
    blocks_total=4,
    slots_free=1,
    slots_total=6,
    step_ms=8.0,
    num_preemptions=0,
    num_finished=7,
    num_bounded=3,
)


@dataclass
class Server:
    num_connections: int = 4
    num_active_responses: int = 2
    is_healthy: bool = True
    frame_s: float = 0.08
    stats: EngineStats | None = STATS

    def engine_stats(self) -> EngineStats | None:
        return self.stats


def readings(metrics: ServerMetrics) -> dict[str, float]:
    lines = (line for line in metrics.exposition().decode().splitlines() if not line.startswith("#"))
    return {name.removeprefix(PREFIX): float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_counted_and_observed_metrics_are_exposed() -> None:
    metrics = ServerMetrics(Server())
    metrics.inc("audio_underruns_total", cause="text")
    metrics.observe("time_to_first_audio_seconds", 0.05)
    metrics.inc("skipped_silence_tokens_total", 5)
    metrics.refused("unauthorized")
    told = readings(metrics)
    assert told['audio_underruns_total{cause="text"}'] == 1
    assert told["skipped_silence_tokens_total"] == 5
    assert told['time_to_first_audio_seconds_bucket{le="0.04"}'] == 0
    assert told['time_to_first_audio_seconds_bucket{le="0.06"}'] == 1
    assert told['refusals_total{code="unauthorized"}'] == 1


def test_gauges_follow_the_server() -> None:
    metrics = ServerMetrics(server := Server())
    assert readings(metrics)["requests_running"] == 3
    assert readings(metrics)["context_limited_requests_total"] == 3
    server.num_connections = 9
    server.stats = None
    assert readings(metrics)["open_connections"] == 9


def test_memory_is_read_for_whoever_asks_and_not_at_every_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    read = iter([7, 9])
    monkeypatch.setattr("realtime.metrics.resident_bytes", lambda pid: next(read))
    metrics = ServerMetrics(Server())
    for _ in range(3):
        metrics.sample()
    assert readings(metrics)["resident_memory_bytes"] == 7
    assert readings(metrics)["resident_memory_bytes"] == 9


def test_each_step_is_sampled_once() -> None:
    metrics = ServerMetrics(server := Server())
    metrics.sample()
    metrics.sample()
    assert readings(metrics)["step_time_seconds_count"] == 1
    assert readings(metrics)["real_time_factor_sum"] == 0.1
    server.stats = None
    metrics.sample()
    assert readings(metrics)["step_time_seconds_count"] == 1


def test_an_unknown_name_is_our_fault() -> None:
    with pytest.raises(KeyError):
        ServerMetrics(Server()).observe("time_seconds", 1.0)


def test_names_say_their_unit() -> None:
    assert all(name.endswith("_total") for name in (*COUNTERS, *ENGINE_COUNTERS))
    assert all(name.endswith(("_seconds", "_factor")) for name in HISTOGRAMS)


def test_metrics_page_lists_every_metric() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text()
    documented = set(re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in page.splitlines() if "|" in line)))
    assert documented == {*COUNTERS, *ENGINE_COUNTERS, *GAUGES, *HISTOGRAMS}
