from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.realtime.agent.stub_backend import StubBackend, stub_backend


@pytest.fixture
async def backend() -> AsyncIterator[StubBackend]:
    async with stub_backend() as stub:
        yield stub
