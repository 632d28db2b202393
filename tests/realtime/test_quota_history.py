"""Quotas of a day after a restart: what the usage log says of today counts, whatever else is in it."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from pathlib import Path

import pytest

from realtime import quota_history
from realtime.api_keys import load_authenticator
from realtime.auth import Authenticator
from realtime.cluster.link import LINK_VARIABLE
from realtime.config_sections import AuthSettings, LogSettings
from realtime.quota_history import read_day_usage, restore_day_counts
from sessions.quotas import DAY_S, QuotaClock, WindowedCounts
from tests.realtime.live_server import live_server, speak
from tests.realtime.test_quotas import KEY, TEXT, write_keys

DAY = 20_000
START_S = DAY * DAY_S
NOON = QuotaClock(utc_s=lambda: START_S + DAY_S / 2)
QUOTAS = "max_chars_per_day = 1000\nmax_audio_s_per_day = 100\nmax_chars_per_minute = 500"


def line(at_s: float, key: str = "ann", chars: int = 10, audio_ms: int = 1_000) -> str:
    written = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(START_S + at_s))
    fields = {"time": written, "id": "s/1", "key": key, "status": "completed", "code": None, "chars": chars}
    return json.dumps(fields | {"audio_ms": audio_ms, "frames": 1, "resynced": False}) + "\n"


@pytest.fixture
def keys(tmp_path: Path) -> Authenticator:
    return load_authenticator(AuthSettings(keys_file=write_keys(tmp_path, QUOTAS)))


async def restored(keys: Authenticator, file: Path, clock: QuotaClock = NOON) -> dict[str, int]:
    counts = WindowedCounts.in_memory(keys.quota_names, clock)
    await restore_day_counts(LogSettings(usage_file=str(file)), keys, counts, clock)
    return {name: counts.total(name) for name, _ in keys.quota_names}


def counted(chars: int, audio_ms: int) -> dict[str, int]:
    """Nothing is restored of a minute."""
    by_rule = {"max_chars_per_minute": 0, "max_chars_per_day": chars, "max_audio_s_per_day": audio_ms}
    return {f"{rule} of ann": count for rule, count in by_rule.items()}


async def test_lines_of_today_count_for_quotas_of_a_day(keys: Authenticator, tmp_path: Path):
    file = tmp_path / "usage.jsonl"
    file.write_text(line(-5_000) + line(-1) + line(0) + line(-1) + line(60, "bob") + line(60) + line(DAY_S))
    assert await restored(keys, file) == counted(20, 2_000)


async def test_lines_that_cannot_be_read_are_skipped(keys: Authenticator, tmp_path: Path):
    file = tmp_path / "usage.jsonl"
    torn = line(5)[:40] + "\n" + line(6)[:-3]
    bad = [line(1, chars=-1), line(1, chars=10**13), '{"time": 3}\n', "[]\n", "\n", "\xff\x00\n"]
    file.write_bytes((line(1) + "".join(bad) + line(2) + torn).encode("latin-1"))
    assert await restored(keys, file) == counted(20, 2_000)


@pytest.mark.parametrize("block_bytes", [1, 7, 150, 4_096])
def test_blocks_of_any_size_give_the_same_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int):
    monkeypatch.setattr(quota_history, "BLOCK_BYTES", block_bytes)
    file = tmp_path / "usage.jsonl"
    file.write_text("".join(line(at_s, chars=at_s) for at_s in range(30)))
    assert read_day_usage(file, START_S).chars["ann"] == sum(range(30))


async def test_reading_is_bounded_and_says_so(
    keys: Authenticator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    file = tmp_path / "usage.jsonl"
    file.write_text(line(1) * 100)
    monkeypatch.setattr(quota_history, "MAX_READ_BYTES", 3 * len(line(1)) + 20)
    with caplog.at_level(logging.WARNING):
        assert await restored(keys, file) == counted(30, 3_000)
    assert "too long" in caplog.text


def test_line_without_an_end_does_not_fill_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(quota_history, "BLOCK_BYTES", 1_000)
    monkeypatch.setattr(quota_history, "MAX_LINE_BYTES", 2_000)
    file = tmp_path / "usage.jsonl"
    file.write_text(line(1) + "x" * 50_000 + "\n" + line(2))
    assert read_day_usage(file, START_S).chars["ann"] == 20


@pytest.mark.parametrize("name", ["missing.jsonl", ".", "/dev/zero"])
async def test_file_that_is_none_counts_nothing(keys: Authenticator, tmp_path: Path, name: str):
    assert await restored(keys, tmp_path / name) == counted(0, 0)


async def test_gateways_of_a_cluster_restore_nothing(
    keys: Authenticator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "usage.jsonl"
    file.write_text(line(1))
    monkeypatch.setenv(LINK_VARIABLE, "/nowhere")
    assert await restored(keys, file) == counted(0, 0)


async def test_day_that_ends_while_the_log_is_read_counts_nothing(keys: Authenticator, tmp_path: Path):
    file = tmp_path / "usage.jsonl"
    file.write_text(line(1))
    moments = iter([START_S + DAY_S - 1])
    clock = QuotaClock(utc_s=lambda: next(moments, START_S + DAY_S))
    assert await restored(keys, file, clock) == counted(0, 0)


async def test_restarted_server_goes_on_with_the_day(tmp_path: Path):
    flags = {
        "auth__keys_file": write_keys(tmp_path, "max_chars_per_day = 20"),
        "log__usage_file": str(tmp_path / "usage.jsonl"),
    }
    async with live_server(**flags) as live, live.session(KEY) as client:
        assert (await speak(client, TEXT, "first")).done.status == "completed"
    async with live_server(**flags) as live, live.session(KEY) as client:
        refused = (await speak(client, TEXT, "second")).done
        assert refused.error is not None
        assert refused.error.code == "quota_exceeded"


async def test_log_is_read_off_the_event_loop(keys: Authenticator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The event loop goes on while the file is being read."""
    loop, reached = asyncio.get_running_loop(), asyncio.Event()

    def read(file: Path, day_start_s: int) -> quota_history.DayUsage:
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()
        loop.call_soon_threadsafe(reached.set)
        return quota_history.DayUsage()

    monkeypatch.setattr(quota_history, "read_day_usage", read)
    await restored(keys, tmp_path / "usage.jsonl")
    await reached.wait()
