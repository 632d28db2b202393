"""An engine within ``memory_gb`` of a CUDA device: what it allocates, what it speaks, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from engine.api import FinishReason, SamplingParams
from engine.config import EngineConfig
from engine.errors import InvalidRequest
from engine.launch import EMBEDDED_VOICE
from engine.load import load_engine
from engine.memory.budget import GB, OUTSIDE_BYTES, free_bytes, limit_memory
from engine.runtime.engine import Engine
from tests.engine.engine_harness import EngineHarness

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CUDA = torch.device("cuda:0")
ROWS = 8
NUM_REQUESTS = 256


@pytest.fixture(autouse=True)
def base_gb() -> Iterator[float]:
    """What engines of earlier tests hold: they are frozen against collection."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    yield torch.cuda.memory_reserved() / GB
    limit_memory(None, CUDA)


def make_engine(memory_gb: float, max_running_requests: int) -> Engine:
    config = EngineConfig(memory_gb=memory_gb, max_batch_size=ROWS, max_running_requests=max_running_requests)
    return load_engine(EMBEDDED_VOICE, config, "cuda", "auto", is_embedded=True).make_engine()


@pytest.mark.parametrize(("more_gb", "is_scarce"), [(1.75, True), (4.0, False)])
def test_engine_speaks_within_its_budget(base_gb: float, more_gb: float, is_scarce: bool) -> None:
    """With little memory the cache is smaller than what its requests would have otherwise; all graphs fit beside it."""
    memory_gb = base_gb + more_gb
    bench = EngineHarness(make_engine(memory_gb, NUM_REQUESTS))
    num_positions = bench.engine.pool.num_blocks * bench.engine.config.block_size
    assert (num_positions < NUM_REQUESTS * 1024) == is_scarce
    rows = [
        bench.submit(text="It is late.", text_closed=True, voice="clara", sampling=SamplingParams(seed=number))
        for number in range(2 * ROWS)
    ]
    bench.run()
    assert {bench.heard[row].reason for row in rows} == {FinishReason.STOP}
    assert torch.cuda.max_memory_reserved() <= memory_gb * GB - OUTSIDE_BYTES
    bench.engine.close()


def test_budget_limits_what_is_free(base_gb: float) -> None:
    limit_memory(base_gb + 2.0, CUDA)
    before = free_bytes(CUDA)
    assert before <= 2 * GB - OUTSIDE_BYTES
    held = torch.zeros(GB // 4, dtype=torch.uint8, device=CUDA)
    assert before - free_bytes(CUDA) == held.nbytes
    with pytest.raises(torch.OutOfMemoryError):
        torch.zeros(GB, dtype=torch.uint8, device=CUDA)


def test_budget_that_holds_no_reply_is_refused(base_gb: float) -> None:
    reason = r"that is too little for the weights|that is too little for slots|graphs leave too little for the cache"
    for more_gb in (1.01, 1.1, 1.2):
        with pytest.raises(InvalidRequest, match=reason) as caught:
            make_engine(base_gb + more_gb, NUM_REQUESTS)
        assert caught.value.param == "memory_gb"


@pytest.mark.parametrize(
    ("memory_gb", "reason"),
    [(0.5, r"memory_gb is 0\.5; CUDA and its graphs need"), (4_000.0, r"memory_gb is 4000\.0; cuda:0 has")],
)
def test_budget_beyond_the_device_is_refused(memory_gb: float, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        limit_memory(memory_gb, CUDA)
