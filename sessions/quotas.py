"""Quotas of a key: characters and seconds of audio in each minute and each day.

A minute is one of the monotonic clock, so that no change of the time of day affects it. A day is one of UTC.
"""

from __future__ import annotations

import mmap
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sessions.admission import UsageCounters
from sessions.errors import QuotaExceeded

MINUTE_S, DAY_S = 60, 86_400
CELL_BYTES = 16
MS_PER_S = 1_000


class QuotaRule(NamedTuple):
    """A kind of quota: its name, what is counted, in how many counts a unit of its limit is, and its window."""

    name: str
    unit: str
    scale: int
    window_s: int


CHAR_RULES = (
    QuotaRule("max_chars_per_minute", "characters", 1, MINUTE_S),
    QuotaRule("max_chars_per_day", "characters", 1, DAY_S),
)
AUDIO_RULES = (
    QuotaRule("max_audio_s_per_minute", "seconds of audio", MS_PER_S, MINUTE_S),
    QuotaRule("max_audio_s_per_day", "seconds of audio", MS_PER_S, DAY_S),
)
RULES = {rule.name: rule for rule in (*CHAR_RULES, *AUDIO_RULES)}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyQuotas:
    """Quotas of a key; ``None`` is unlimited."""

    max_chars_per_minute: int | None = None
    max_chars_per_day: int | None = None
    max_audio_s_per_minute: int | None = None
    max_audio_s_per_day: int | None = None

    def given(self) -> list[tuple[QuotaRule, int]]:
        limits = ((rule, getattr(self, rule.name)) for rule in RULES.values())
        return [(rule, limit) for rule, limit in limits if limit is not None]


NO_QUOTAS = KeyQuotas()


class QuotaState(NamedTuple):
    rule: QuotaRule
    limit: int
    # In units of the limit.
    remaining: int
    reset_s: float


def quota_counter(rule: QuotaRule, key_name: str) -> str:
    return f"{rule.name} of {key_name}"


@dataclass(frozen=True, slots=True)
class QuotaClock:
    """The two clocks. Both are the same in all processes of a machine."""

    monotonic_s: Callable[[], float] = time.monotonic
    utc_s: Callable[[], float] = time.time

    def window(self, window_s: int) -> int:
        return int(self._now_s(window_s) // window_s)

    def reset_s(self, window_s: int) -> float:
        """Return the time until the window ends, at most its duration."""
        return window_s - self._now_s(window_s) % window_s

    def _now_s(self, window_s: int) -> float:
        return self.monotonic_s() if window_s == MINUTE_S else self.utc_s()


class WindowedCounts:
    """Counts that begin at zero with each window: a row for each name, a column for each process.

    A process counts only in its own column, so nothing is locked. A clock that is set back does not clear a count: it
    goes on in the earlier window, and ends with that one.
    """

    def __init__(self, cells: memoryview, names: Sequence[tuple[str, int]], column: int, clock: QuotaClock) -> None:
        """``names`` are counters with the seconds of their windows; ``cells`` are 64-bit numbers."""
        self._cells = cells
        self._rows = {name: (row, window_s) for row, (name, window_s) in enumerate(names)}
        self._num_columns = len(cells) // 2 // len(names) if names else 0
        self._column = column
        self._clock = clock

    @classmethod
    def in_memory(cls, names: Sequence[tuple[str, int]], clock: QuotaClock | None = None) -> WindowedCounts:
        return cls(memoryview(array("q", [0] * 2 * len(names))), names, 0, clock or QuotaClock())

    @classmethod
    def in_file(cls, file: Path, names: Sequence[tuple[str, int]], column: int) -> WindowedCounts:
        """Map the file of ``make_file``."""
        if not names:
            return cls.in_memory(names)
        with file.open("r+b") as opened:
            return cls(memoryview(mmap.mmap(opened.fileno(), 0)).cast("q"), names, column, QuotaClock())

    @staticmethod
    def make_file(file: Path, names: Sequence[tuple[str, int]], num_columns: int) -> None:
        file.write_bytes(bytes(CELL_BYTES * len(names) * num_columns))

    def has(self, name: str) -> bool:
        return name in self._rows

    def add(self, name: str, by: int) -> None:
        row, window_s = self._rows[name]
        window, cell = self._clock.window(window_s), 2 * (row * self._num_columns + self._column)
        if self._cells[cell] < window:
            self._cells[cell + 1] = 0  # first, so that no other process adds the former count to the new window
        self._cells[cell] = window
        self._cells[cell + 1] += by

    def total(self, name: str) -> int:
        row, window_s = self._rows[name]
        window, start = self._clock.window(window_s), 2 * row * self._num_columns
        total = 0
        for cell in range(start, start + 2 * self._num_columns, 2):
            if self._cells[cell] > window:  # the clock was set back: do not wait for the later window to end
                self._cells[cell] = window
            total += self._cells[cell + 1] if self._cells[cell] == window else 0
        return total


class QuotaCounters:
    """Usage counters of a server: ``inner``, and the counts of quotas beside it."""

    def __init__(self, inner: UsageCounters, windowed: WindowedCounts) -> None:
        self._inner = inner
        self._windowed = windowed

    @property
    def is_current(self) -> bool:
        return self._inner.is_current

    def add(self, name: str, by: int) -> None:
        (self._windowed if self._windowed.has(name) else self._inner).add(name, by)

    def total(self, name: str) -> int:
        return (self._windowed if self._windowed.has(name) else self._inner).total(name)

    def places(self, name: str, limit: int, needed: int = 1) -> int:
        return self._inner.places(name, limit, needed)


class KeyMeter:
    """Checks and counts what one key uses. Without quotas every method returns at once."""

    def __init__(
        self,
        key: str,
        quotas: KeyQuotas,
        counters: UsageCounters,
        retry_after_ms: int = 1_000,
        clock: QuotaClock | None = None,
    ) -> None:
        self._given = [(rule, limit, quota_counter(rule, key)) for rule, limit in quotas.given()]
        self._counters = counters
        self._retry_after_ms = retry_after_ms
        self._clock = clock or QuotaClock()

    def charge_text(self, num_chars: int) -> None:
        """Count text that arrives. Raises what ``check`` raises; then nothing was counted."""
        self.check(num_chars)
        self._add(CHAR_RULES, num_chars)

    def charge_audio(self, num_ms: int) -> None:
        """Count audio that was sent."""
        self._add(AUDIO_RULES, num_ms)

    @property
    def counts_audio(self) -> bool:
        return any(rule in AUDIO_RULES for rule, _, _ in self._given)

    def check(self, num_chars: int = 1) -> None:
        """Check that ``num_chars`` fit and that audio is left. Raises ``QuotaExceeded``."""
        for rule, limit, counter in self._given:
            used = self._counters.total(counter)
            needed = num_chars if rule in CHAR_RULES else 1
            places = self._counters.places(counter, limit * rule.scale, needed)
            if used + needed > places:
                raise self._refusal(rule, limit, used, num_chars, places < limit * rule.scale)

    def _refusal(self, rule: QuotaRule, limit: int, used: int, num_chars: int, is_leased: bool) -> QuotaExceeded:
        reset_s = self._clock.reset_s(rule.window_s)
        found = f"{rule.name} is {limit}, {used // rule.scale} {rule.unit} are used"
        if rule in CHAR_RULES:
            if num_chars > limit:
                return QuotaExceeded(f"{rule.name} is {limit}, the text has {num_chars} characters", "text")
            found += f" and the text has {num_chars}"
        # The places of other gateways come within a second.
        has_more = is_leased and used + num_chars <= limit * rule.scale
        wait_ms = self._retry_after_ms if has_more else round(1000 * reset_s) + 1
        return QuotaExceeded(f"{found}; the quota resets in {reset_s:.0f} s", retry_after_ms=wait_ms)

    def _add(self, rules: Iterable[QuotaRule], by: int) -> None:
        for rule, _, counter in self._given:
            if rule in rules:
                self._counters.add(counter, by)

    def states(self) -> Iterator[QuotaState]:
        """Return what is left of each quota."""
        for rule, limit, counter in self._given:
            left = max(limit * rule.scale - self._counters.total(counter), 0)
            yield QuotaState(rule, limit, left // rule.scale, self._clock.reset_s(rule.window_s))
