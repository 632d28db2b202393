"""Many ears are looked at together, and each is told what it would have been told alone."""

from __future__ import annotations

import asyncio
from collections import Counter

import numpy as np
import pytest

from sessions.audio.pcm import Pcm
from sessions.hearing import ears as module
from sessions.hearing.caller import CallerEar, EarSettings, Look
from sessions.hearing.ears import MAX_LOOKS, Ears

pytestmark = pytest.mark.virtual_time

PACKETS = [bytes([number]) * 160 for number in range(100)]
"""Of 20 ms."""


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """How many windows were looked at in each run, and their rate. Speech is what begins with a certain sample."""
    found: list[tuple[int, int]] = []

    def looked_at(looks: list[Look], rate: int) -> list[tuple[float, float]]:
        assert len({id(look.track) for look in looks}) == len(looks)
        found.append((len(looks), rate))
        return [(float(_is_speech(look.window)), -10.0) for look in looks]

    monkeypatch.setattr(module, "looked_at", looked_at)
    monkeypatch.setattr("sessions.hearing.caller.looked_at", looked_at)
    return found


def _is_speech(window: Pcm) -> bool:
    return bool(np.abs(window).max() < 0.01)


async def test_each_is_told_what_it_is_told_alone(runs: list[tuple[int, int]]) -> None:
    data = [PACKETS[(7 * number) % 100] for number in range(60)] + [b"\xff" * 160] * 30 + PACKETS[:10]
    alone = CallerEar("mulaw", 8_000, EarSettings())
    expected = sum(alone.began_to_speak(packet) for packet in data)
    assert expected
    ears, began = Ears(), Counter[int]()
    lines = [CallerEar("mulaw", 8_000, EarSettings()) for _ in range(10)]
    runs.clear()
    for packet in data:
        for number, ear in enumerate(lines):
            ears.hear(ear, packet, lambda number=number: began.update([number]))  # type: ignore[misc]
        await asyncio.sleep(0.02)
    assert began == dict.fromkeys(range(10), expected)
    assert {num for num, _ in runs} <= {10, 20}, "one run for all of them"


async def test_a_flood_is_looked_at_in_turns_and_all_of_it(runs: list[tuple[int, int]]) -> None:
    ears = Ears()
    lines = [CallerEar("mulaw", rate, EarSettings()) for rate in (8_000,) * 50 + (16_000,) * 5]
    for ear in lines:
        for packet in PACKETS:
            ears.hear(ear, packet, lambda: None)
    await asyncio.sleep(0.01)
    await asyncio.sleep(0.01)
    assert not any(ear.waiting for ear in lines)
    assert max(num for num, _ in runs) <= MAX_LOOKS
    assert {rate for _, rate in runs} == {8_000, 16_000}
    assert sum(num for num, rate in runs if rate == 8_000) == 50 * 124


async def test_a_forgotten_ear_is_told_nothing(runs: list[tuple[int, int]]) -> None:
    ears, ear = Ears(), CallerEar("mulaw", 8_000, EarSettings())
    ears.hear(ear, b"\xff" * 1_600, lambda: pytest.fail("it was told"))
    ears.forget(ear)
    await asyncio.sleep(0.1)
    assert runs == []
    ears.hear(ear, b"\x00" * 1_600, lambda: pytest.fail("there was no speech"))
    await asyncio.sleep(0.1)
    assert runs
