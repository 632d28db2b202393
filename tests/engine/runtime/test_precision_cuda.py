"""The engine in fp8 and int4 on a CUDA device: fused products, the same codes each time, nearly those of bf16."""

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
NUM_FIRST_FRAMES = 5
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
def spoken(precision: str) -> list[Codes]:
    return speak(precision)


@pytest.mark.parametrize("precision", ["fp8", "int4"])
def test_every_product_of_the_embedded_talker_is_fused(precision: str) -> None:
    engine = make_engine(precision)
    program = engine.runner.program  # type: ignore[attr-defined]
    assert isinstance(program, FrameProgram)
    weights = [
        weight for layer in program.talker_stack.layers for weight in (layer.qkv, layer.out, layer.gate_up, layer.down)
    ]
    if precision == "fp8":
        assert all(program.ops.fused(ROWS, weight) is not None for weight in weights)  # type: ignore[attr-defined]
    else:
        assert all(program.ops.operand(weight, ROWS, torch.bfloat16) is weight for weight in weights)  # type: ignore[attr-defined]
    engine.close()


@pytest.mark.parametrize("precision", ["fp8", "int4"])
def test_quantized_talker_speaks_the_same_codes_each_time(precision: str) -> None:
    for one, other in zip(spoken(precision), speak(precision), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize(("precision", "min_equal"), [("fp8", 0.6), ("int4", 0.2)])
def test_quantized_talker_speaks_nearly_as_bf16(precision: str, min_equal: float) -> None:
    found, bf16 = spoken(precision), spoken("bf16")
    equal = [
        (one[:NUM_FIRST_FRAMES, 0] == other[:NUM_FIRST_FRAMES, 0]).mean()
        for one, other in zip(found, bf16, strict=True)
    ]
    assert np.mean(equal) >= min_equal
    assert 0.85 < sum(map(len, found)) / sum(map(len, bf16)) < 1.15
    assert any(not np.array_equal(one, other) for one, other in zip(found, bf16, strict=True))
