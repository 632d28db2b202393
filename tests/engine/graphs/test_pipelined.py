"""The engine over static buffers, run eagerly on the CPU, says what the plain engine says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.api import FinishReason, SamplingParams, TextLayout
from engine.config import EngineConfig
from engine.load import load_engine
from tests.engine.recorder import Recorder

TEXT = "the quick brown fox jumps over the lazy dog"
TOLERANCE = 1e-5
"""Of PCM in [-1, 1] in fp32; measured below 1e-6."""
SAMPLINGS = [
    SamplingParams(seed=2**64 - 3, min_new_tokens=3),
    SamplingParams(seed=5, top_p=0.9, temperature=1.2, min_new_tokens=2),
    SamplingParams(seed=6, temperature=0.0, predictor_top_k=3, repetition_penalty=1.5),
    SamplingParams(seed=7, top_k=0, predictor_temperature=0.0, repetition_window=4, repetition_penalty=1.8),
]


def make_bench(folder: Path, graphs: bool, **settings: Any) -> Recorder:
    usual = dict(num_blocks=300, block_size=8, max_batch=8, max_requests=8, max_frames=16)
    config = EngineConfig(**(usual | settings), graphs=graphs)
    return Recorder(load_engine(folder, config, "cpu", "float32", is_embedded=False).make_engine())


def check_same(found: Recorder, wanted: Recorder) -> None:
    assert set(found.heard) == set(wanted.heard)
    for row, heard in wanted.heard.items():
        assert found.heard[row].reason == heard.reason
        assert len(found.heard[row].pcm) == len(heard.pcm)
        assert np.abs(found.heard[row].pcm - heard.pcm).max() < TOLERANCE


@pytest.mark.parametrize("layout", [TextLayout.FULL, TextLayout.STREAMING])
def test_it_says_what_the_plain_engine_says(any_folder: Path, layout: TextLayout) -> None:
    benches = []
    for graphs in (False, True):
        bench = make_bench(any_folder, graphs)
        for number, sampling in enumerate(SAMPLINGS):
            bench.submit(text=TEXT[: 9 * number + 5], text_closed=True, layout=layout, sampling=sampling)
            bench.step()
        bench.run()
        benches.append(bench)
    check_same(benches[1], benches[0])
