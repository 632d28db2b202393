"""Reads what keys have used today back from the usage log, so that quotas of a day survive a restart of the server."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from stat import S_ISREG
from typing import Annotated, BinaryIO

import msgspec
from msgspec import Meta

from realtime.auth import Authenticator
from realtime.cluster.link import LINK_VARIABLE
from realtime.config_sections import LogSettings
from sessions.quotas import CHAR_RULES, DAY_S, QuotaClock, QuotaRule, WindowedCounts, quota_counter

log = logging.getLogger("voicewire.usage")

BLOCK_BYTES = 2**20
# About a million replies; more are not counted.
MAX_READ_BYTES = 256 * 2**20
MAX_LINE_BYTES = 65_536
# Lines that waited for a full disk may stand behind later ones.
MAX_DELAY_S = 3_600

Amount = Annotated[int, Meta(ge=0, le=10**12)]


class UsageLine(msgspec.Struct, frozen=True):
    """The fields of a line that quotas need."""

    time: str
    key: str
    chars: Amount
    audio_ms: Amount


_decoder = msgspec.json.Decoder(UsageLine)


class DayUsage:
    """Characters and milliseconds of audio of one day, by key."""

    def __init__(self) -> None:
        self.chars: Counter[str] = Counter()
        self.audio_ms: Counter[str] = Counter()
        # The log of the day is longer than ``MAX_READ_BYTES``.
        self.is_cut = False

    def used(self, rule: QuotaRule, key: str) -> int:
        return (self.chars if rule in CHAR_RULES else self.audio_ms)[key]


async def restore_day_counts(
    settings: LogSettings, keys: Authenticator, counts: WindowedCounts, clock: QuotaClock | None = None
) -> None:
    """Add the use of today to new counts, if there are quotas of a day and a usage log.

    Not in a cluster: there the other gateways have their counts, and those of one machine may share the log.
    """
    given = ((caller.name, rule) for caller in keys.principals for rule, _ in caller.quotas.given())
    rules = [(name, rule) for name, rule in given if rule.window_s == DAY_S]
    if settings.usage_file is None or not rules or LINK_VARIABLE in os.environ:
        return
    clock = clock or QuotaClock()
    day = clock.window(DAY_S)
    try:
        usage = await asyncio.to_thread(read_day_usage, Path(settings.usage_file), day * DAY_S)
    except OSError as error:
        log.warning("usage log cannot be read", extra={"error": type(error).__name__})
        return
    if usage.is_cut:
        log.warning("usage log of today is too long; quotas begin with a part of it")
    for name, rule in rules if clock.window(DAY_S) == day else ():
        counts.add(quota_counter(rule, name), usage.used(rule, name))


def read_day_usage(file: Path, day_start_s: int) -> DayUsage:
    """Sum up the lines of a day of UTC. Lines that cannot be read are skipped. Blocks. Raises ``OSError``."""
    usage = DayUsage()
    if not file.exists() or not S_ISREG(file.stat().st_mode):
        return usage
    today = time.strftime("%Y-%m-%d", time.gmtime(day_start_s))
    first = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(day_start_s - MAX_DELAY_S))
    with file.open("rb") as opened:
        size = opened.seek(0, os.SEEK_END)
        for text in read_lines_backward(opened, size):
            try:
                line = _decoder.decode(text)
            except msgspec.DecodeError:
                continue
            if line.time < first:
                return usage
            if line.time.startswith(today):
                usage.chars[line.key] += line.chars
                usage.audio_ms[line.key] += line.audio_ms
    usage.is_cut = size > MAX_READ_BYTES
    return usage


def read_lines_backward(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield the lines of the first ``size`` bytes from the last one on, of at most ``MAX_READ_BYTES`` of them."""
    end, first, tail = size, max(size - MAX_READ_BYTES, 0), b""
    while end > first:
        start = max(end - BLOCK_BYTES, first)
        file.seek(start)
        tail, *lines = (file.read(end - start) + tail).split(b"\n")
        yield from reversed(lines)
        end, tail = start, tail if len(tail) <= MAX_LINE_BYTES else b""
    if first == 0:
        yield tail
