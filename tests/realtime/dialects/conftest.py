from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.realtime.dialects.talk import KEY
from tests.realtime.live import Live, live_server


@pytest.fixture
async def live() -> AsyncIterator[Live]:
    """A server that wants a key; after the test nothing may be left behind."""
    async with live_server(auth__api_keys=f"agent:{KEY}") as server:
        yield server
        await server.freed()
