"""The engine in fp8 on a CUDA device: fused products, the same codes each time, and nearly those of bf16."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from engine.api import FinishReason, SamplingParams
from engine.config import EngineConfig
from engine.launch import EMBEDDED_VOICE
from engine.load import load_engine
from engine.models.qwen3_tts.frame_program import FrameProgram
from engine.runtime.engine import Engine
from tests.engine.engine_harness import EngineHarness

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9), reason="needs CUDA that has fp8"
    ),
]
TEXTS = ("Good morning to all.", "It is late, and the rain is cold.", "Where have you been?", "Your order has left us.")
ROWS = 8
# Of the first frames of a reply: sampling with the same noise differs where two codes are about as likely.
NUM_FIRST_FRAMES, MIN_EQUAL = 5, 0.6
Codes = np.ndarray


def make_engine(precision: str) -> Engine:
    """One graph of ``ROWS`` rows, so that a row does not depend on the others."""
    config = EngineConfig(
        precision=precision, max_batch_size=ROWS, fixed_batch_rows=ROWS, max_running_requests=2 * ROWS,
        kv_memory_mb=256, lazy_graph_capture=True,
    )  # fmt: skip
    return load_engine(EMBEDDED_VOICE, config, "cuda", "auto", is_embedded=True).make_engine()


def speak(precision: str) -> list[Codes]:
    """Codes [T, K] of a reply for each text and voice."""
    bench = EngineHarness(make_engine(precision))
    requests = [(text, voice) for text in TEXTS for voice in ("clara", "edwin")]
    rows = [
        bench.submit(text=text, text_closed=True, voice=voice, sampling=SamplingParams(seed=number))
        for number, (text, voice) in enumerate(requests)
    ]
    bench.run()
    bench.check_idle()
    assert {bench.heard[row].reason for row in rows} == {FinishReason.STOP}
    size = bench.engine.model.codes_per_step
    found = [b"".join(chunk.codes for chunk in bench.heard[row].chunks) for row in rows]
    bench.engine.close()
    return [np.frombuffer(codes, np.int16).reshape(-1, size) for codes in found]


@cache
def spoken_in_fp8() -> list[Codes]:
    return speak("fp8")


def test_every_product_of_the_embedded_talker_is_fused() -> None:
    engine = make_engine("fp8")
    program = engine.runner.program  # type: ignore[attr-defined]
    assert isinstance(program, FrameProgram)
    weights = [
        weight for layer in program.talker_stack.layers for weight in (layer.qkv, layer.out, layer.gate_up, layer.down)
    ]
    assert all(program.ops.fused(ROWS, weight) is not None for weight in weights)  # type: ignore[attr-defined]
    engine.close()


def test_fp8_speaks_the_same_codes_each_time() -> None:
    for one, other in zip(spoken_in_fp8(), speak("fp8"), strict=True):
        assert np.array_equal(one, other)


def test_fp8_speaks_nearly_as_bf16() -> None:
    fp8, bf16 = spoken_in_fp8(), speak("bf16")
    equal = [
        (one[:NUM_FIRST_FRAMES, 0] == other[:NUM_FIRST_FRAMES, 0]).mean() for one, other in zip(fp8, bf16, strict=True)
    ]
    assert np.mean(equal) >= MIN_EQUAL
    assert 0.85 < sum(map(len, fp8)) / sum(map(len, bf16)) < 1.15
    assert any(not np.array_equal(one, other) for one, other in zip(fp8, bf16, strict=True))
