"""The usage log: written before the terminal event, and of no effect on speech when its disk fails."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from pathlib import Path

import pytest

from realtime.config import ConfigError
from realtime.usage_log import UsageLog
from sessions.usage import UsageRecord
from tests.realtime.live_server import live_server, speak, until
from tests.sessions.conftest import CountingMetrics

TEXT = "One two three."


def lines_of(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def record(number: int) -> UsageRecord:
    return UsageRecord(
        id=f"s/{number}", key="ann", status="completed", code=None, chars=3, audio_ms=80, frames=1, resynced=False
    )


async def test_line_is_written_before_the_terminal_event(tmp_path: Path):
    file = tmp_path / "usage.jsonl"
    async with live_server(log__usage_file=str(file)) as live, live.session() as client:
        done = (await speak(client, TEXT, "first")).done
        (line,) = lines_of(file)
        assert (line["key"], line["status"], line["chars"]) == ("local", "completed", len(TEXT))
        assert line["audio_ms"] == pytest.approx(done.audio_ms, abs=1)
        assert "One" not in file.read_text()
        file.rename(tmp_path / "rotated.jsonl")
        await speak(client, TEXT, "second")
        assert len(lines_of(file)) == 1
    assert file.stat().st_mode & 0o777 == 0o600


async def test_full_disk_stops_no_speech_and_is_counted():
    full = Path("/dev/full")
    async with live_server(log__usage_file=str(full)) as live, live.session() as client:
        assert (await speak(client, TEXT)).done.status == "completed"
        assert b"voicewire_usage_log_failures_total 0.0" not in live.speech.metrics.exposition()


async def test_lines_of_a_full_disk_are_written_later_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file, real_write, is_full = tmp_path / "usage.jsonl", os.write, True

    def write(descriptor: int, data: bytes) -> int:
        if not is_full:
            return real_write(descriptor, data)
        if file.stat().st_size:
            raise OSError(errno.ENOSPC, "no space")
        return real_write(descriptor, data[:5])  # what still fits

    usage = UsageLog(file, CountingMetrics())
    monkeypatch.setattr("realtime.usage_log.RETRY_INTERVAL_S", 0.01)
    monkeypatch.setattr("realtime.usage_log.os.write", write)
    await usage.record(record(1))
    await usage.record(record(2))
    assert file.stat().st_size == 5
    is_full = False
    await until(lambda: file.read_bytes().count(b"\n") == 3)
    usage.close()
    torn, *whole = file.read_text().splitlines()
    assert len(torn) == 5
    assert [json.loads(line)["id"] for line in whole] == ["s/1", "s/2"]


async def test_lines_of_several_processes_stay_whole(tmp_path: Path):
    file = tmp_path / "usage.jsonl"
    logs = [UsageLog(file, CountingMetrics()) for _ in range(2)]
    await asyncio.gather(*(logs[number % 2].record(record(number)) for number in range(200)))
    for usage in logs:
        usage.close()
    assert {line["id"] for line in lines_of(file)} == {f"s/{number}" for number in range(200)}


def test_file_that_cannot_be_opened_is_an_error(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"log\.usage_file = .*missing.*No such file"):
        UsageLog(tmp_path / "missing" / "usage.jsonl", CountingMetrics())
