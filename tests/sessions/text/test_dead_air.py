from __future__ import annotations

import pytest

from sessions.text.dead_air import DeadAirSettings, TextStats, should_close_early, should_open_next

ON = DeadAirSettings()
OFF = DeadAirSettings(enabled=False)

CLOSE_EARLY = [
    # text so far, left to hear (ms), settings, closed
    ("one two three four five six", 299, ON, True),
    ("one two three four five six", 300, ON, False),
    ("one two three four five", 299, ON, False),
    ("well,", 299, ON, True),
    ("Yes.", 0, ON, True),
    ("", 0, ON, False),
    ("one", 0, ON, False),
    ("它今天很好吗", 0, ON, True),
    ("今天", 0, ON, False),
    ("don't it's we're", 0, ON, False),
    ("one two three four five six", 0, OFF, False),
    ("one two three, four", 1000, ON, False),
]

OPEN_NEXT = [
    # text gathered, left to hear (ms), settings, opened
    ("and then", 399, ON, True),
    ("and then", 400, ON, False),
    ("and then.", 5000, ON, True),
    ("and then. We", 5000, ON, True),
    ("and 3.5", 5000, ON, False),
    ("好。", 5000, ON, True),
    ("and then,", 5000, ON, False),
    ("", 0, ON, False),
    (" ... ", 0, ON, False),
    ("and", 5000, OFF, True),
    ("", 0, OFF, False),
]


@pytest.mark.parametrize(("text", "remaining_ms", "settings", "expected"), CLOSE_EARLY)
def test_close_early(text: str, remaining_ms: float, settings: DeadAirSettings, expected: bool) -> None:
    assert should_close_early(TextStats.from_text(text), remaining_ms, settings) is expected


@pytest.mark.parametrize(("text", "remaining_ms", "settings", "expected"), OPEN_NEXT)
def test_open_next(text: str, remaining_ms: float, settings: DeadAirSettings, expected: bool) -> None:
    assert should_open_next(TextStats.from_text(text), remaining_ms, settings) is expected
