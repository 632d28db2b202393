"""The usage log: written before the terminal event, and of no effect on speech when its disk fails."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import itertools
import json
import os
import resource
from contextlib import suppress
from pathlib import Path

import pytest

from realtime.client import open_session
from realtime.config import ConfigError
from realtime.usage_log import UsageLog
from sessions.usage import UsageRecord
from tests.realtime.live_server import QUICK, live_server, speak, until
from tests.realtime.server_process import server
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


async def test_line_after_a_torn_one_is_whole(tmp_path: Path):
    file = tmp_path / "usage.jsonl"
    file.write_text('{"time": "2026')
    usage = UsageLog(file, CountingMetrics())
    await usage.record(record(1))
    usage.close()
    torn, whole = file.read_text().splitlines()
    assert (torn, json.loads(whole)["id"]) == ('{"time": "2026', "s/1")


async def speak_until_the_end(url: str, ended: list[str]) -> None:
    """Note each reply whose terminal event came, by its name in the log, until the server is gone."""
    client = await open_session(url)
    with suppress(OSError, AssertionError):
        for number in itertools.count():
            await speak(client, TEXT, str(number))
            ended.append(f"{client.created.session_id}/{number}")


async def test_killed_server_has_logged_every_reply_that_ended(tmp_path: Path):
    file, ended = tmp_path / "usage.jsonl", list[str]()
    script = dataclasses.asdict(QUICK)
    with server(script, log__usage_file=str(file)) as served:
        clients = [asyncio.create_task(speak_until_the_end(served.url, ended)) for _ in range(8)]
        await until(lambda: len(ended) >= 40)
        served.process.kill()
        await asyncio.gather(*clients)
    *whole, last = file.read_bytes().split(b"\n")
    assert set(ended) <= {json.loads(line)["id"] for line in whole}
    assert len(whole) <= len(ended) + len(clients), "a line for a reply that did not end"
    assert last == b"", "a torn line"


@pytest.mark.slow
async def test_file_that_may_not_grow_stops_no_speech(tmp_path: Path):
    file, ended = tmp_path / "usage.jsonl", list[str]()
    with server(dataclasses.asdict(QUICK), log__usage_file=str(file)) as served:
        client = asyncio.create_task(speak_until_the_end(served.url, ended))
        await until(lambda: len(ended) >= 3)
        hard = resource.prlimit(served.process.pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(served.process.pid, resource.RLIMIT_FSIZE, (file.stat().st_size + 20, hard))
        num_before = len(ended)
        await until(lambda: len(ended) >= num_before + 10)
        resource.prlimit(served.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        num_before = len(ended)
        await until(lambda: len(ended) > num_before)
        await until(lambda: set(ended) <= {line.get("id") for line in lines_of_torn(file)})
        served.process.kill()
        await client


def lines_of_torn(file: Path) -> list[dict]:
    """The lines that can be parsed."""
    found = []
    for line in file.read_text().splitlines():
        with suppress(ValueError):
            found.append(json.loads(line))
    return found


def test_file_that_cannot_be_opened_is_an_error(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"log\.usage_file = .*missing.*No such file"):
        UsageLog(tmp_path / "missing" / "usage.jsonl", CountingMetrics())
