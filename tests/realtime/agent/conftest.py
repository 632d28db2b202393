from __future__ import annotations

from collections.abc import AsyncIterator

import numpy as np
import pytest

from sessions.audio.pcm import Pcm
from sessions.audio.resampler import Resampler
from tests.realtime.agent.stub_backend import StubBackend, stub_backend


@pytest.fixture
async def backend() -> AsyncIterator[StubBackend]:
    async with stub_backend() as stub:
        yield stub


@pytest.fixture(scope="package")
def line_speech() -> Pcm:
    """About 1.5 s of speech at 8 kHz."""
    from training.flite import SAMPLE_RATE_HZ, available, synthesize

    if not available():
        pytest.skip("flite is not installed")
    pcm = np.asarray(synthesize("Wait a moment, please.", "slt").pcm, np.float32) / 32768
    return Resampler(SAMPLE_RATE_HZ, 8_000).push(pcm)
