"""Our own voice on a line: how loud it may come back, now."""

from __future__ import annotations

import numpy as np
import pytest

from sessions.audio.g711 import pcm_to_mulaw
from sessions.hearing.caller import SILENCE_DB, encoded_level_db, level_db
from sessions.hearing.echo import MAX_FRAMES, OwnVoice

FRAME = 160
LOUD = pcm_to_mulaw(np.full(FRAME, 0.1, np.float32))
QUIET = pcm_to_mulaw(np.full(FRAME, 0.001, np.float32))


def test_levels_are_of_full_scale() -> None:
    assert level_db(np.full(100, 0.1, np.float32)) == pytest.approx(-20.0, abs=0.01)
    assert level_db(np.zeros(0, np.float32)) == level_db(np.zeros(9, np.float32)) == SILENCE_DB
    assert encoded_level_db("mulaw", LOUD) == pytest.approx(-20.0, abs=0.3)


def test_the_loudest_that_may_come_back_counts() -> None:
    voice = OwnVoice("mulaw", 8_000)
    assert voice.level_db(0) == SILENCE_DB
    for number in range(100):
        voice.sent((number + 1) * FRAME, LOUD if number == 50 else QUIET)
    loud_end = 51 * FRAME
    assert voice.level_db(loud_end - 1_601) < -50, "not played for another 200 ms"
    assert voice.level_db(loud_end - 1_600) == pytest.approx(-20.0, abs=0.3)
    assert voice.level_db(loud_end + 4_800) == pytest.approx(-20.0, abs=0.3)
    assert voice.level_db(loud_end + 4_801) < -50, "played 600 ms ago"


def test_what_is_cleared_is_not_played() -> None:
    voice = OwnVoice("mulaw", 8_000)
    voice.sent(FRAME, QUIET)
    voice.sent(2 * FRAME, LOUD)
    voice.cut(FRAME)
    assert voice.level_db(FRAME) < -50


def test_a_line_on_which_nobody_listens_keeps_no_more_and_more() -> None:
    voice = OwnVoice("mulaw", 8_000)
    for number in range(5_000):
        voice.sent((number + 1) * FRAME, LOUD)
    assert len(voice._frames) == MAX_FRAMES
    assert voice.level_db(5_000 * FRAME) == pytest.approx(-20.0, abs=0.3)
