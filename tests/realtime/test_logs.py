"""Logs and metrics."""

from __future__ import annotations

import ast
import asyncio
import gc
import json
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.api import EngineStats
from realtime.config_sections import LogSettings
from realtime.logs import FIELDS, configure_logs
from realtime.metrics import COUNTERS, ENGINE_COUNTERS, GAUGES, HISTOGRAMS, PREFIX, ServerMetrics


@pytest.fixture(autouse=True)
def root_logger_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_log_line_is_one_object_with_known_fields(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(LogSettings(format="json"))
    logging.getLogger("voicewire").info("session opened", extra={"session_id": "s1", "text": "what was said"})
    line = json.loads(capsys.readouterr().err)
    assert line.pop("time").endswith("Z")
    assert line == {"level": "info", "logger": "voicewire", "message": "session opened", "session_id": "s1"}


def fail(said: str) -> None:
    try:
        raise KeyError(said)
    except KeyError as error:
        raise ExceptionGroup(said, [ValueError(said)]) from error


@pytest.mark.parametrize("format", ["json", "text"])
@pytest.mark.parametrize(("level", "is_told"), [("info", False), ("debug", True)])
def test_exception_message_is_logged_at_debug_only(
    capsys: pytest.CaptureFixture[str], format: str, level: str, is_told: bool
) -> None:
    configure_logs(LogSettings(format=format, level=level))
    try:
        fail("what a client said")
    except ExceptionGroup:
        logging.getLogger("voicewire").exception("failed")
    written = capsys.readouterr().err
    if format == "json":
        written = json.loads(written)["exception"]
    assert all(part in written for part in ("KeyError", "ExceptionGroup", "ValueError", "in fail"))
    assert ("what a client said" in written.replace('fail("what a client said")', "")) is is_told


def test_addresses_stay_out_of_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(LogSettings(format="text", level="debug"))
    logging.getLogger("uvicorn.error").info('"WebSocket /v1/speech?api_key=secret" [accepted]')
    logging.getLogger("uvicorn.access").info("GET /v1/voices?api_key=secret")
    logging.getLogger("voicewire").warning("kept", extra={"code": "draining"})
    written = capsys.readouterr().err
    assert "secret" not in written
    assert "kept code=draining" in written


def test_every_field_that_a_call_passes_is_known() -> None:
    root = Path(__file__).parents[2]
    files = [*root.glob("realtime/**/*.py"), *root.glob("sessions/**/*.py")]
    passed = {name for file in files for name in fields_passed(ast.parse(file.read_text()))}
    assert passed == set(FIELDS)


def fields_passed(module: ast.Module) -> Iterator[str]:
    """Keys of every ``extra=`` of a log call, and of what functions of the module make for it."""
    functions = {node.name: node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)}
    calls = [node for node in ast.walk(module) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    for node in (keyword for call in calls for keyword in call.keywords):
        if node.arg == "extra":
            called = [one.func for one in ast.walk(node.value) if isinstance(one, ast.Call)]
            names = [getattr(function, "attr", getattr(function, "id", "")) for function in called]
            made = [node.value, *(functions[name] for name in names if name in functions)]
            found = [one for part in made for one in ast.walk(part) if isinstance(one, ast.Dict)]
            assert found, ast.unparse(node)
            yield from (ast.literal_eval(key) for one in found for key in one.keys if key)


async def lost(said: str) -> None:
    raise ValueError(said)


def callback(said: str) -> None:
    raise ValueError(said)


@pytest.mark.parametrize("format", ["json", "text"])
@pytest.mark.parametrize("fault", ["task", "future", "callback", "destroyed"])
def test_asyncio_faults_are_logged_without_text(capsys: pytest.CaptureFixture[str], format: str, fault: str) -> None:
    configure_logs(LogSettings(format=format))
    secret = "what a client said"

    async def run() -> None:
        loop = asyncio.get_running_loop()
        match fault:
            case "task":
                task = loop.create_task(lost(secret), name=secret)
                await asyncio.wait([task])
                del task
            case "future":
                loop.create_future().set_exception(ValueError(secret))
            case "callback":
                loop.call_soon(callback, secret)
            case "destroyed":
                loop.call_exception_handler({"message": "Task was destroyed", "task": secret, secret: 1})
        await asyncio.sleep(0)
        gc.collect()

    asyncio.run(run())
    told = capsys.readouterr().err
    assert secret not in told
    expected = {
        "task": "Task exception was never retrieved",
        "future": "Future exception was never retrieved",
        "callback": "Exception in callback callback",
        "destroyed": "Task was destroyed",
    }
    assert expected[fault] in told
    assert "ValueError" in told or fault == "destroyed"


def test_asyncio_errors_are_logged_in_full_at_debug(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(LogSettings(format="text", level="debug"))
    logging.getLogger("asyncio").error("Task exception was never retrieved\nfuture: %r", "what a client said")
    assert "what a client said" in capsys.readouterr().err


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
    has_current_lease: bool = True
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


def test_memory_is_read_on_request_not_per_sample(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_names_end_in_their_unit() -> None:
    assert all(name.endswith("_total") for name in (*COUNTERS, *ENGINE_COUNTERS))
    assert all(name.endswith(("_seconds", "_factor")) for name in HISTOGRAMS)


def test_metrics_page_lists_every_metric() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text()
    documented = set(re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in page.splitlines() if "|" in line)))
    assert documented == {*COUNTERS, *ENGINE_COUNTERS, *GAUGES, *HISTOGRAMS}
