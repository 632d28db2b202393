"""Our own voice on a line: how loud it may come back, now."""

from __future__ import annotations

import numpy as np
import pytest

from sessions.audio.g711 import pcm_to_mulaw
from sessions.vad.echo_suppression import MAX_FRAMES, NUM_UNCONFIRMED_WINDOWS, NUM_WINDOWS, EchoThreshold, PlayoutLevel
from sessions.vad.energy import SILENCE_DB, encoded_level_db, level_db

FRAME = 160
LOUD = pcm_to_mulaw(np.full(FRAME, 0.1, np.float32))
QUIET = pcm_to_mulaw(np.full(FRAME, 0.001, np.float32))


def test_levels_are_of_full_scale() -> None:
    assert level_db(np.full(100, 0.1, np.float32)) == pytest.approx(-20.0, abs=0.01)
    assert level_db(np.zeros(0, np.float32)) == level_db(np.zeros(9, np.float32)) == SILENCE_DB
    assert encoded_level_db("mulaw", LOUD) == pytest.approx(-20.0, abs=0.3)


def test_the_loudest_that_may_come_back_counts() -> None:
    voice = PlayoutLevel("mulaw", 8_000)
    assert voice.level_db(0) == SILENCE_DB
    for number in range(100):
        voice.on_sent((number + 1) * FRAME, LOUD if number == 50 else QUIET)
    loud_end = 51 * FRAME
    assert voice.level_db(loud_end - 1_601) < -50, "not played for another 200 ms"
    assert voice.level_db(loud_end - 1_600) == pytest.approx(-20.0, abs=0.3)
    assert voice.level_db(loud_end + 4_800) == pytest.approx(-20.0, abs=0.3)
    assert voice.level_db(loud_end + 4_801) < -50, "played 600 ms ago"


def test_what_is_cleared_is_not_played() -> None:
    voice = PlayoutLevel("mulaw", 8_000)
    voice.on_sent(FRAME, QUIET)
    voice.on_sent(2 * FRAME, LOUD)
    voice.truncate(FRAME)
    assert voice.level_db(FRAME) < -50


def test_a_line_on_which_nobody_listens_keeps_no_more_and_more() -> None:
    voice = PlayoutLevel("mulaw", 8_000)
    for number in range(5_000):
        voice.on_sent((number + 1) * FRAME, LOUD)
    assert len(voice._frames) == MAX_FRAMES
    assert voice.level_db(5_000 * FRAME) == pytest.approx(-20.0, abs=0.3)


def learnt(echo: EchoThreshold, level_db: float, num: int = 1) -> None:
    """And as many windows more as it takes to be sure."""
    for level in [level_db] * num + [-90.0] * NUM_UNCONFIRMED_WINDOWS:
        echo.update(level, -10.0)


def test_a_line_has_to_show_that_it_brings_back_less() -> None:
    echo = EchoThreshold(20.0)
    assert echo.threshold_db(-10.0) == -28.5
    learnt(echo, -50.0, NUM_WINDOWS - 1)
    assert echo.threshold_db(-10.0) == -28.5
    learnt(echo, -50.0)
    assert echo.threshold_db(-10.0) == -46.0
    learnt(echo, -40.0)
    assert echo.threshold_db(-10.0) == -36.0, "it has brought back more"
    assert (echo.threshold_db(-8.0), echo.threshold_db(-25.0)) == (-34.0, -43.5), (
        "it brings back more of more, and less of less"
    )
    learnt(echo, -20.0)
    assert echo.threshold_db(-10.0) == -28.5, "no more than it was told"


def test_the_soft_beginning_of_a_voice_is_no_echo() -> None:
    echo = EchoThreshold(20.0)
    learnt(echo, -50.0, NUM_WINDOWS)
    for _ in range(NUM_UNCONFIRMED_WINDOWS):
        echo.update(-30.0, -10.0)
    assert echo.threshold_db(-10.0) == -46.0
    echo.on_speech_detected()
    assert echo.threshold_db(-10.0) == -28.5, "if it was an echo after all, the next one is none again"
    learnt(echo, -50.0, NUM_WINDOWS)
    assert echo.threshold_db(-10.0) == -46.0


def test_nothing_is_learnt_while_we_are_silent() -> None:
    echo = EchoThreshold(20.0)
    for _ in range(2 * NUM_WINDOWS):
        echo.update(-90.0, -50.0)
    assert echo.threshold_db(-10.0) == -28.5
