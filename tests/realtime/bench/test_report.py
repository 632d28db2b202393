from __future__ import annotations

import msgspec
import pytest

from realtime.bench.plan import LoadPlan, ResponseResult
from realtime.bench.report import plot, summarise, table
from realtime.bench.run import split


def outcome(**fields: object) -> ResponseResult:
    usual = {"session": 0, "status": "completed", "ttfa_ms": 50.0, "audio_s": 2.0, "work_s": 1.0, "ended_s": 4.0}
    return ResponseResult(**(usual | fields))  # type: ignore[arg-type]


OUTCOMES = [
    outcome(),
    outcome(ttfa_ms=150.0, underruns_engine=2),
    outcome(status="cancelled", cancel_ms=3.0, cancel_done_ms=4.0, audio_s=1.0),
    outcome(status="failed", error="overloaded", ttfa_ms=None, audio_s=0.0),
]


def test_the_last_line_has_the_keys_that_were_promised() -> None:
    line = msgspec.json.decode(msgspec.json.encode(summarise(OUTCOMES, 3, burst=False, server_rss_mb=50.04)))
    assert (
        line.items()
        >= {
            "sessions": 3,
            "responses": 3,
            "errors": 1,
            "rtf": None,
            "continuity": 0.5,
            "audio_s_per_s": 1.25,
            "server_rss_mb": 50.0,
            "underruns": {"text": 0, "engine": 2},
            "error_codes": {"overloaded": 1},
        }.items()
    )
    assert {"ttfa_ms", "ttfa_first_delta_ms", "ttfa_audible_ms", "cancel_ms"} <= set(line)
    assert set(line["ttfa_ms"]) == {"p50", "p95", "p99"}
    assert line["ttfa_ms"]["p50"] == 50.0


def test_bursts_have_a_factor_and_no_continuity() -> None:
    summary = summarise(OUTCOMES, 3, burst=True, server_rss_mb=None)
    assert summary.continuity is None
    assert summary.rtf is not None
    assert summary.rtf.p50 == 0.5


@pytest.mark.parametrize(
    ("outcomes", "passed"),
    [(OUTCOMES[:1], True), (OUTCOMES[:2], False), (OUTCOMES[::3], False), (OUTCOMES[::2], True)],
)
def test_an_error_or_a_gap_fails_the_check(outcomes: list[ResponseResult], passed: bool) -> None:
    assert summarise(outcomes, 1, burst=False, server_rss_mb=None).is_success is passed


def test_nothing_at_all_can_be_told_too() -> None:
    summary = summarise([], 1, burst=False, server_rss_mb=None)
    assert "continuity" in table(summary)
    assert plot([]).startswith("<svg")


def test_the_table_and_the_plot() -> None:
    told = table(summarise(OUTCOMES, 3, burst=False, server_rss_mb=50.0))
    assert "3, 3 responses, 1 errors" in told
    assert "50.00 % of responses" in told
    assert "error overloaded" in told
    assert plot(OUTCOMES).count("polyline") == 1


@pytest.mark.parametrize(("num_sessions", "num_processes"), [(10, 3), (2, 5), (1, 1)])
def test_sessions_are_split_over_processes(num_sessions: int, num_processes: int) -> None:
    plan = LoadPlan(url="ws://h:1", corpus="c", num_sessions=num_sessions, total_sessions=num_sessions)
    parts = split(plan, num_processes)
    numbered = [part.first_session + at for part in parts for at in range(part.num_sessions)]
    assert numbered == list(range(num_sessions))
    assert all(part.num_sessions > 0 for part in parts)
