"""Many ears are looked at together, and each is told what it would have been told alone."""

from __future__ import annotations

import asyncio
from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest

from sessions.vad.barge_in import BargeInDetector, BargeInSettings
from sessions.vad.scheduler import MAX_BATCH_WINDOWS, VadScheduler
from sessions.vad.silero import VadState

pytestmark = pytest.mark.virtual_time

# Of 20 ms.
PACKETS = [bytes([number]) * 160 for number in range(100)]


SETTINGS = BargeInSettings(min_level_db=-120.0, noise_margin_db=0.0)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """How many windows were looked at in each run, and their rate. Silence is taken for speech."""
    found: list[tuple[int, int]] = []

    def likelihoods(tracks: list[VadState], windows: npt.NDArray[np.float32], rate: int) -> npt.NDArray[np.float32]:
        assert len({id(track) for track in tracks}) == len(tracks)
        found.append((len(tracks), rate))
        return (np.abs(windows).max(1) < 0.01).astype(np.float32)

    monkeypatch.setattr("sessions.vad.barge_in.speech_probabilities", likelihoods)
    return found


async def test_each_is_told_what_it_is_told_alone(runs: list[tuple[int, int]]) -> None:
    data = [PACKETS[(7 * number) % 100] for number in range(60)] + [b"\xff" * 160] * 30 + PACKETS[:10]
    alone = BargeInDetector("mulaw", 8_000, SETTINGS)
    expected = sum(alone.detect(packet) for packet in data)
    assert expected
    ears, began = VadScheduler(), Counter[int]()
    lines = [BargeInDetector("mulaw", 8_000, SETTINGS) for _ in range(10)]
    runs.clear()
    for packet in data:
        for number, ear in enumerate(lines):
            ears.push(ear, packet, lambda number=number: began.update([number]))  # type: ignore[misc]
        await asyncio.sleep(0.02)
    assert began == dict.fromkeys(range(10), expected)
    assert {num for num, _ in runs} <= {10, 20}, "one run for all of them"


async def test_a_flood_is_looked_at_in_turns_and_all_of_it(runs: list[tuple[int, int]]) -> None:
    ears = VadScheduler()
    lines = [BargeInDetector("mulaw", rate, SETTINGS) for rate in (8_000,) * 50 + (16_000,) * 5]
    for ear in lines:
        for packet in PACKETS:
            ears.push(ear, packet, lambda: None)
    await asyncio.sleep(0.01)
    await asyncio.sleep(0.01)
    assert not any(ear.pending for ear in lines)
    assert max(num for num, _ in runs) <= MAX_BATCH_WINDOWS
    assert {rate for _, rate in runs} == {8_000, 16_000}
    assert sum(num for num, rate in runs if rate == 8_000) == 50 * 124


async def test_a_forgotten_ear_is_told_nothing(runs: list[tuple[int, int]]) -> None:
    ears, ear = VadScheduler(), BargeInDetector("mulaw", 8_000, SETTINGS)
    ears.push(ear, b"\xff" * 1_600, lambda: pytest.fail("it was told"))
    ears.remove(ear)
    await asyncio.sleep(0.1)
    assert runs == []
    ears.push(ear, b"\x00" * 1_600, lambda: pytest.fail("there was no speech"))
    await asyncio.sleep(0.1)
    assert runs


async def test_what_cannot_be_looked_at_is_not_tried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, faults = Counter[str](), Counter[str]()

    def likelihoods(*_: object) -> None:
        tried.update(["run"])
        raise RuntimeError("no network")

    monkeypatch.setattr("sessions.vad.barge_in.speech_probabilities", likelihoods)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.update([str(context["exception"])]))
    ears, ear = VadScheduler(), BargeInDetector("mulaw", 8_000, SETTINGS)
    ears.push(ear, PACKETS[0] * 10, lambda: pytest.fail("nothing was heard"))
    await asyncio.sleep(0.1)
    assert tried["run"] == faults["no network"] == 1
