"""An engine over graphs of sizes that every kernel takes, on any device, and what it decodes together."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import random_model
from engine.api import TextLayout
from engine.config import EngineConfig
from engine.load import build_engine
from engine.models.qwen3_tts.load import build_family
from engine.program.decode_executor import PendingWork
from engine.runtime.codec_runners import GraphCodec
from engine.runtime.engine import Engine
from tests.engine.engine_harness import EngineHarness
from tests.engine.runtime.test_pipelined import SAMPLINGS, TEXT
from tests.fakes.checkpoints import TINY

FUSIBLE: dict[str, Any] = TINY | {
    "talker": dict(hidden=128, intermediate=256, layers=2, heads=4, kv_heads=2, head_dim=32, text_hidden=64),
    "predictor": dict(hidden=128, intermediate=256, layers=1, heads=4, kv_heads=2, head_dim=32),
    "codec": dict(hidden=128, intermediate=128, layers=1, heads=4, kv_heads=4, head_dim=32),
    "codec_sizes": dict(codebook_dim=64, latent_dim=64, decoder_dim=256, sliding_window=12),
}
# A step waits for the calls of the one before at one place, and never looks whether some have passed earlier: a chunk
# handed over earlier changes who decodes how many frames next. With the recorder's clock nothing depends on time then.
TIMELESS: dict[str, Any] = dict(emit_per_decode_call=False)


@torch.inference_mode()
def bench_of(device: torch.device, dtype: torch.dtype, **settings: Any) -> EngineHarness:
    random_model.SHAPES["fusible"] = FUSIBLE
    torch.manual_seed(0)
    usual: dict[str, Any] = dict(
        num_blocks=400,
        max_batch_size=8,
        max_running_requests=8,
        max_frames=24,
        max_graph_positions=512,
        loop_limit_frames=10_000,
        admission_utilization=1e3,
    )
    config = EngineConfig(**(usual | {"graphs": True} | settings))
    with tempfile.TemporaryDirectory() as folder:
        model, codec = random_model.build(Path(folder), "fusible", torch.float32, torch.device("cpu"))
    model.talker.to(device=device, dtype=dtype)
    codec.to(device=device, dtype=dtype)
    for module in (model.talker, codec):
        for child in module.modules():
            for name in ("frame_offsets", "offsets"):
                if name in child.__dict__:
                    setattr(child, name, getattr(child, name).to(device))
    predictor = model.talker.code_predictor
    predictor.input_tables = [table.to(device=device, dtype=dtype) for table in predictor.input_tables]
    model.device = device
    engine: Engine = build_engine(build_family(model, codec), config, dtype, device)
    with pytest.MonkeyPatch.context() as patch:  # how often it rehearses decides who gets which slot
        patch.setattr("engine.runtime.engine.MAX_WARM_UP_S", math.inf)
        engine.warm_up()
    return EngineHarness(engine)


def speak(bench: EngineHarness) -> list[np.ndarray]:
    rows = []
    for number, sampling in enumerate(SAMPLINGS):
        layout = TextLayout.FULL if number % 2 else TextLayout.STREAMING
        rows.append(bench.submit(text=TEXT[: 9 * number + 5], text_closed=True, layout=layout, sampling=sampling))
        bench.step()
    bench.run()
    bench.check_idle()
    return [bench.heard[row].pcm for row in rows]


@dataclass
class Busy:
    """A ticket that says of its work whether it has passed as a device would that is as busy as ``passes`` tells."""

    ticket: PendingWork
    passes: Callable[[], bool]

    def wait(self) -> None:
        self.ticket.wait()

    @property
    def is_done(self) -> bool:
        return self.passes()


def keep_busy(bench: EngineHarness, passes: Callable[[], bool]) -> None:
    lane = codec_of(bench).lane
    run = lane.run
    lane.run = lambda work: Busy(run(work), passes)  # type: ignore[method-assign]


def note_calls(bench: EngineHarness) -> list[tuple[list[int], int]]:
    """Slots and frames a row of every decode call from here on."""
    stage, calls = bench.engine.stage, []
    launch = stage._launch_call  # type: ignore[attr-defined]

    def note(slots: np.ndarray, count: int, slack_s: float) -> None:
        calls.append((slots.tolist(), count))
        launch(slots, count, slack_s)

    stage._launch_call = note  # type: ignore[attr-defined]
    return calls


def codec_of(bench: EngineHarness) -> GraphCodec:
    codec = bench.engine.stage.codec  # type: ignore[attr-defined]
    assert isinstance(codec, GraphCodec)
    return codec
