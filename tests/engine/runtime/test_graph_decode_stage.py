"""The decode stage over graphs: what is decoded for whom, whenever calls pass."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.models.base import VoiceReference
from engine.program.capture import GraphSet
from engine.program.decode_executor import same_device_executor
from engine.runtime.codec_runners import GraphCodec
from engine.runtime.codec_stage import CodecStage
from tests.engine.runtime.graph_harness import TIMELESS, bench_of, keep_busy, note_calls, speak

CPU = torch.device("cpu")
RING_FRAMES = 32


class Counting:
    """A ``DecodeProgramProtocol`` of one sample a frame: the code itself."""

    device = CPU
    frame_samples = 1

    def __init__(self, num_slots: int) -> None:
        self.max_rows = num_slots
        self.ring = torch.zeros(num_slots + 2, RING_FRAMES, 1, dtype=torch.int64)
        self.slots, self.sources, self.starts = (torch.zeros(num_slots, dtype=torch.int64) for _ in range(3))
        self.first = torch.zeros(num_slots, dtype=torch.int32)
        self.pcm = torch.zeros(num_slots)
        self.finite = torch.ones(num_slots, dtype=torch.bool)
        self.state: Tensor = torch.zeros(num_slots + 1, 1)
        self.past: Tensor = torch.zeros(1, num_slots + 1)

    def rows_of(self, num_frames: int) -> int:
        return max(1, self.max_rows // num_frames)

    def run(self, num_rows: int, num_frames: int) -> None:
        places = (self.starts[:num_rows, None] + torch.arange(num_frames)) % RING_FRAMES
        codes = self.ring[self.sources[:num_rows, None], places, 0]
        self.pcm[: num_rows * num_frames] = codes.flatten().float()


class Stage:
    def __init__(self, num_slots: int) -> None:
        self.program = Counting(num_slots)
        graphs, lane = GraphSet(self.program.run, CPU), same_device_executor(self.program.ring)
        self.codec = GraphCodec(self.program, graphs, lane, num_slots)
        self.decode = CodecStage(self.codec, num_slots, 24_000, gather_slack_s=0.4)
        self.heard: dict[int, list[int]] = {}

    def reserve(self) -> int:
        slot = self.decode.reserve()
        assert slot is not None
        self.heard[slot] = []
        return slot

    def step(self, slots: list[int], slack_s: np.ndarray, wanted: np.ndarray) -> None:  # type: ignore[type-arg]
        """One frame of each of ``slots``, and a round."""
        for slot in slots:
            frame = int(self.decode.num_fed[slot])
            self.program.ring[slot, frame % RING_FRAMES] = frame
        self.decode.feed_batch(slots)
        for chunk in self.decode.collect(self.decode.launch(slack_s, wanted)):
            self.heard[chunk.slot] += chunk.pcm.astype(int).tolist()


def test_postponed_slot_decodes_before_codes_are_overwritten() -> None:
    stage, num_others = Stage(32), 31
    slack_s, wanted = np.full(33, 1.0), np.full(33, 8)
    patient = stage.reserve()
    slack_s[patient], wanted[patient] = math.inf, 1
    for _ in range(15):
        crowd = [stage.reserve() for _ in range(num_others)]
        for _ in range(24):
            stage.step([patient, *crowd], slack_s, wanted)
        for slot in crowd:
            stage.decode.release(slot)
        stage.decode.release_quarantined()
    assert len(stage.heard[patient]) > 300
    assert stage.heard[patient] == list(range(len(stage.heard[patient])))


@pytest.mark.parametrize("num_frames", [0, 1, 7, 23, 375])
def test_a_reference_is_heard_whole_in_order_in_few_calls(num_frames: int) -> None:
    stage = Stage(8)
    heard: list[tuple[int, list[int]]] = []
    run = stage.program.run

    def listen(num_rows: int, num_frames: int) -> None:
        run(num_rows, num_frames)
        assert stage.program.slots[0] == slot
        heard.append((int(stage.program.first[0]), stage.program.pcm[:num_frames].int().tolist()))

    slot = stage.reserve()
    stage.codec.graphs = GraphSet(listen, CPU)
    stage.decode.prime(slot, VoiceReference("voice", [[100 + frame] for frame in range(num_frames)]))
    assert [code for _, codes in heard for code in codes] == [100 + frame for frame in range(num_frames)]
    assert all(codes[0] == 100 + first for first, codes in heard)
    assert len(heard) == num_frames // 8 + (num_frames % 8).bit_count()


def spoken(passes: Callable[[], bool], **settings: Any) -> tuple[list[tuple[list[int], int]], list[np.ndarray]]:
    bench = bench_of(torch.device("cpu"), torch.float32, lazy_graph_capture=True, max_frames=14, **settings)
    keep_busy(bench, passes)
    calls = note_calls(bench)
    return calls, speak(bench)


@pytest.mark.parametrize("settings", [{}, TIMELESS], ids=["as it is", "timeless"])
def test_waiting_for_calls_makes_steps_deterministic(settings: dict[str, Any]) -> None:
    chance = random.Random(1)
    (calls, rows), *others = (
        spoken(passes, **settings) for passes in (lambda: True, lambda: False, lambda: chance.random() < 0.2)
    )
    assert all((other_calls == calls) == (settings is TIMELESS) for other_calls, _ in others)
    if settings is TIMELESS:
        assert all(np.array_equal(one, other) for _, found in others for one, other in zip(rows, found, strict=True))
